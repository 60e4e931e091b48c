// The page: receives events, keeps the last minutes, and draws.

import { BarChart, PolicyChart, TimeChart } from "./charts.js";
import { byId, bytes, clock, duration, make, number, percent, say } from "./format.js";
import { closest, rates, since } from "./history.js";
import { Stream, token } from "./stream.js";
import "./theme.js";
import { meters, tiles } from "./widgets.js";
import { WhatIf } from "./whatif.js";

const WINDOW_S = 300;
const MINUTE_S = 60;
const QUIET_PER_S = 0.01;

const charts = {
  response: new TimeChart(byId("chart-response"), "Response time", { unit: " ms", windowS: WINDOW_S }),
  load: new TimeChart(byId("chart-load"), "Load", { unit: "/s", windowS: WINDOW_S }),
  replicas: new TimeChart(byId("chart-replicas"), "Replicas", { windowS: WINDOW_S, whole: true }),
  policy: new PolicyChart(byId("chart-policy"), "Policy"),
  sizes: new BarChart(byId("chart-sizes"), "Batch sizes", "requests in a batch"),
  power: new TimeChart(byId("chart-power"), "Power", { unit: " W", windowS: WINDOW_S }),
};
const whatIf = new WhatIf();

let decisions = [];
let newest = [];
let shown = null;
// Reports by replica and model: another replica may answer after a reconnect.
const histories = new Map();

function history(replica, model) {
  const key = `${replica} ${model}`;
  if (!histories.has(key)) histories.set(key, []);
  return histories.get(key);
}

function onEvent(name, content) {
  if (name === "decisions") {
    decisions = content;
    return;
  }
  byId("main").setAttribute("aria-busy", "false");
  models(content.models);
  for (const report of content.models) {
    const kept = history(content.replica, report.model);
    kept.push({ timeS: content.time_s, report: { ...report, last_batches: null, actions: null } });
    while (kept[0].timeS < content.time_s - WINDOW_S - 5) kept.shift();
  }
  for (const [key, kept] of histories) {
    if (kept.at(-1).timeS < content.time_s - WINDOW_S) histories.delete(key);
  }
  const latest = content.fleet.newest;
  if (latest && latest.time_s !== newest.at(-1)?.time_s) {
    newest.push(latest);
    while (newest[0].time_s < latest.time_s - WINDOW_S) newest.shift();
  }
  shown = content;
  render();
}

function models(reports) {
  const select = byId("model");
  const names = reports.map(({ model }) => model);
  if (names.join() !== [...select.options].map(({ value }) => value).join()) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
  byId("model-choice").hidden = names.length < 2;
}

function render() {
  if (!shown) return;
  const reports = shown.models;
  const report = reports.find(({ model }) => model === byId("model").value) ?? reports[0];
  const kept = history(shown.replica, report.model);
  const isFirst = report === reports[0];
  document.title = `${report.model} · Sojourn console`;
  for (const element of document.querySelectorAll(".who")) say(element, `Of ${shown.replica}.`);
  if (report.pipeline) renderPipeline(report, kept);
  else renderModel(report, kept, isFirst);
  renderStore(shown.store);
  const { memory_bytes: memory, up_s: upS } = shown.process;
  say(byId("process"), `${shown.replica} takes ${bytes(memory)} of memory and has run for ${duration(upS)}.`);
}

function attainment(kept) {
  // A failed request is not in time.
  const all = ({ rows }) => rows.answered + rows.failed;
  const missed = ({ rows }) => rows.late + rows.failed;
  const share = (missedRows, rows) => Math.max(0, 1 - missedRows / rows);
  const rows = since(kept, MINUTE_S, all).value;
  if (rows > 0) return { share: share(since(kept, MINUTE_S, missed).value, rows), seconds: since(kept, MINUTE_S, () => 0).seconds };
  const last = kept.at(-1).report;
  if (all(last) > 0 && kept.length < 3) return { share: share(missed(last), all(last)), seconds: null };
  return { share: null, seconds: 0 };
}

function renderModel(report, kept, isFirst) {
  const { sla } = report;
  const target = sla.percentile / 100;
  const now = attainment(kept);
  const kept99 = now.share === null ? null : now.share >= target;
  hero(report, now, kept99);

  const fleet = isFirst ? newest.at(-1) ?? null : null;
  const key = closest({ ...report.measured_ms, ...report.predicted_ms }, sla.percentile) ?? "99";
  const measuredMs = report.measured_ms[key];
  const predicted = report.predicted_ms;
  // The estimate of the load never falls to 0 by itself.
  const estimate = fleet?.arrival_rate_per_s ?? report.arrival_rate_per_s;
  const load = estimate < QUIET_PER_S ? 0 : estimate;
  const power = since(kept, 10, ({ device }) => device.energy_j);
  const done = since(kept, 10, ({ rows }) => rows.completed).value;
  const isMetered = report.device.energy_j !== null;
  const powerW = isMetered && power.seconds > 0 ? power.value / power.seconds : null;
  const predictedW = report.power_w.predicted;
  const limits = { event_loop: "event loop", device: "device", neither: "something else" };
  tiles([
    ["In time, last minute", percent(now.share), `the SLA requires ${percent(target, 3)}`, kept99 === null ? "" : kept99 ? "good" : "bad"],
    [`p${key} response time`, `${number(measuredMs)}|ms`, predicted[key] ? `predicted ${number(predicted[key])} ms` : "no prediction now", ""],
    [fleet ? "Load of the fleet" : "Load of this replica", `${number(load)}|/s`, fleet?.demand_per_s ? `sized for ${number(fleet.demand_per_s)}/s` : `${report.queue_length} waiting`, ""],
    ["Replicas", fleet ? number(fleet.replicas) : "–", fleet ? replicaWords(fleet) : "no autoscaler decides", ""],
    ...(isMetered ? [["Power of this replica", `${number(powerW)}|W`, predictedW ? `predicted ${number(predictedW)} W` : done > 0 ? `${number((1000 * power.value) / done)} mJ per request` : "idle", ""]] : []),
    ["Bottleneck", isIdle(report, kept) ? "none" : limits[report.bottleneck] ?? "–", `${percent(deviceShare(kept), 0)} device, ${percent(report.event_loop.utilization, 0)} event loop`, ""],
  ]);

  const nowS = shown.time_s;
  const line = (get) => kept.map(({ timeS, report: one }) => [timeS, get(one)]);
  charts.response.update({
    nowS,
    limits: [{ value: sla.response_time_ms, text: `SLA: ${number(sla.response_time_ms)} ms` }],
    series: [
      { name: `p${key}`, color: "var(--blue)", points: line((one) => one.measured_ms[key] ?? null) },
      { name: `p${key} predicted`, color: "var(--orange)", dash: "5 4", points: line((one) => one.predicted_ms[key] ?? null) },
      { name: "p50", color: "var(--teal)", dash: "1.5 4", points: line((one) => one.measured_ms["50"] ?? null) },
    ],
  });
  const log = [...decisions.filter(({ time_s: timeS }) => !newest.length || timeS < newest[0].time_s), ...newest];
  const fleetLine = (get) => log.map((entry) => [entry.time_s, get(entry)]);
  const ofReplica = { name: "this replica", color: "var(--teal)", dash: "1.5 4", points: line((one) => one.arrival_rate_per_s) };
  charts.load.update({
    nowS,
    series: fleet
      ? [
          { name: "load", color: "var(--blue)", area: true, points: fleetLine((one) => one.arrival_rate_per_s) },
          { name: "demand", color: "var(--orange)", dash: "5 4", points: fleetLine((one) => one.demand_per_s) },
          ofReplica,
        ]
      : [ofReplica],
  });
  charts.replicas.update({
    nowS,
    series: [
      { name: "ordered", color: "var(--blue)", step: true, area: true, points: fleetLine((one) => one.replicas) },
      { name: "required", color: "var(--orange)", dash: "5 4", step: true, points: fleetLine((one) => one.required_replicas) },
    ],
  });
  byId("card-replicas").hidden = !isFirst;
  reasons();

  charts.policy.update({
    actions: report.actions, controlLimit: report.control_limit, longestWaitMs: report.longest_wait_ms,
    batches: report.last_batches, queueLength: report.queue_length, limitMs: sla.response_time_ms,
  });
  const first = kept.find(({ timeS }) => timeS >= nowS - MINUTE_S) ?? kept[0];
  const before = kept.length > 2 ? first.report.batch_sizes : {};
  const counts = Object.entries(report.batch_sizes).map(([size, count]) => [Number(size), count - (before[size] ?? 0)]);
  const all = counts.reduce((sum, [, count]) => sum + count, 0);
  charts.sizes.update({
    most: Math.max(report.batch_size_limit, ...counts.map(([size]) => size), 1),
    shares: new Map(counts.filter(([, count]) => count > 0).map(([size, count]) => [size, count / all])),
  });
  byId("card-power").hidden = report.device.energy_j === null;
  charts.power.update({
    nowS,
    series: [{ name: "power", color: "var(--blue)", area: true, points: rates(kept, ({ device }) => device.energy_j) }],
  });
  renderLimits(report, kept);
  whatIf.present(report.model, {
    response_time_ms: sla.response_time_ms, percentile: sla.percentile,
    arrival_rate_per_s: load > 0 ? load : lastLoad(log, kept) ?? report.sla_rate_per_s ?? 1,
    hasLoad: load > 0, burst_factor: report.autoscaler.burst_factor, hasEnergy: report.has_energy,
    energy_weight: energyWeight(report), energy_price: 0, replica_price: 0,
  });
}

// The last load that there was, without one now.
function lastLoad(log, kept) {
  return [...log, ...kept.map(({ report }) => report)].findLast((one) => one.arrival_rate_per_s >= QUIET_PER_S)?.arrival_rate_per_s;
}

// As `policy_objective` of the config: without energy, `auto` minimizes the mean response time.
function energyWeight({ objective, has_energy: hasEnergy }) {
  if (objective.objective === "weights") return objective.energy_weight;
  return objective.objective === "auto" && !hasEnergy ? 0 : null;
}

// At so little load nothing is a bottleneck.
function isIdle(report, kept) {
  return Math.max(deviceShare(kept) ?? 0, report.event_loop.utilization ?? 0) < 0.05;
}

function deviceShare(kept) {
  const busy = since(kept, 10, ({ device }) => device.busy_s);
  return busy.seconds > 0 ? Math.min(1, busy.value / busy.seconds) : null;
}

function replicaWords({ replicas, required_replicas: required, target_replicas: target, stuck_replicas: stuck, predicted_service_level: level }) {
  if (stuck) return `${stuck} do not start`;
  if (target !== replicas) return `changed from ${target}`;
  if (level !== null) return `keep ${percent(level)} in time, predicted`;
  return required === null ? "none required yet" : `${required} required`;
}

function hero(report, now, isKept) {
  const element = byId("hero");
  element.dataset.kept = isKept === null ? "" : isKept ? "yes" : "no";
  say(byId("sla"), `${report.model} · ${report.sla_in_words}`);
  const span = now.seconds === null ? "since the start" : now.seconds < 55 ? `in the last ${Math.max(1, Math.round(now.seconds))} s` : "in the last minute";
  say(byId("verdict"), isKept === null ? "No request was answered lately" : `${isKept ? "The SLA is kept" : "The SLA is missed"}: ${percent(now.share)} in time ${span}`);
  const notes = [];
  if (report.table === "solving") notes.push("A new policy is being solved.");
  if (report.bottleneck === "neither") notes.push("Other processes take the cores, so response times cannot be predicted.");
  if (report.wait_factor < 0.99) notes.push(`Waits are shortened to ${percent(report.wait_factor, 0)}, because more was late than predicted.`);
  const refused = Object.entries(report.last_minute ?? report.pipeline?.last_minute ?? {}).filter(([key, count]) => key.startsWith("refused_") && count);
  if (refused.length) notes.push(`Refused in the last minute: ${refused.map(([key, count]) => `${number(count)} ${key.slice(8).replaceAll("_", " ")}`).join(", ")}.`);
  if (report.model_errors?.requests) notes.push(`The model has failed on ${number(report.model_errors.requests)} requests.`);
  if (report.cpus_note) notes.push(`${report.cpus_note}.`);
  say(byId("rejected"), report.config_error ? `The newest config is rejected, and an older one is in force, with its tokens: ${report.config_error}.` : "");
  say(byId("notes"), notes.join(" "));
}

let reasonsShown = "";

function reasons() {
  const changes = decisions.filter((entry, index) => index === 0 || entry.replicas !== decisions[index - 1].replicas);
  const rows = [...changes.slice(-12)].reverse();
  const key = JSON.stringify(rows.map(({ time_s: timeS }) => timeS));
  if (key === reasonsShown) return;
  reasonsShown = key;
  byId("reasons").replaceChildren(
    ...rows.map(({ time_s: timeS, replicas, reason }) =>
      make("li", {}, make("time", {}, clock(timeS)), make("span", { class: "count" }, String(replicas)), make("span", { class: "why" }, reason))),
  );
}

function renderLimits(report, kept) {
  const words = {
    event_loop: "The event loop is busier than the device: another replica helps, a faster device does not.",
    device: "The device is the busier stage: another replica helps, and so does a faster device.",
    neither: "Neither the device nor the event loop: other processes take the cores.",
  };
  const limiting = isIdle(report, kept) ? null : report.bottleneck;
  say(byId("bottleneck-words"), words[limiting] ?? "");
  const { event_loop: loop } = report;
  meters(byId("meters"), [
    ["Device", deviceShare(kept), null, limiting === "device"],
    ["Event loop", loop.utilization, loop.request_ms === null ? null : `${number(1000 * loop.request_ms)} µs per request, ${number(loop.lag_ms)} ms late`, limiting === "event_loop"],
  ]);
}

function renderStore(store) {
  byId("card-store").hidden = !store;
  if (!store) return;
  if (store.error) {
    say(byId("tiers"), store.error);
    return;
  }
  meters(byId("tiers"), Object.entries(store.tiers).map(([name, tier]) => [
    name, tier.budget_bytes ? tier.used_bytes / tier.budget_bytes : null,
    `${bytes(tier.used_bytes)} of ${bytes(tier.budget_bytes)} · ${number(tier.hits, 6)} hits, ${number(tier.misses, 6)} misses`, false,
  ]));
}

function renderPipeline(report, kept) {
  const { pipeline } = report;
  for (const id of ["card-replicas", "card-policy", "card-sizes", "card-power", "card-limits"]) byId(id).hidden = true;
  byId("card-pipeline").hidden = false;
  say(byId("response-words"), "Measured over ten seconds, with the expected time of a new request.");
  say(byId("load-words"), "Requests to this replica.");
  const answered = since(kept, MINUTE_S, (one) => one.pipeline.requests.completed);
  const late = since(kept, MINUTE_S, ({ pipeline: { requests } }) => requests.late + requests.failed).value;
  const target = report.sla.percentile / 100;
  // Late and failed requests are not completed.
  const share = answered.value + late > 0 ? answered.value / (answered.value + late) : null;
  hero({ ...report, wait_factor: 1 }, { share, seconds: answered.seconds }, share === null ? null : share >= target);
  const offered = rates(kept, (one) => one.pipeline.requests.offered);
  const line = (get) => kept.map(({ timeS, report: one }) => [timeS, get(one)]);
  const key = closest(pipeline.measured_ms, report.sla.percentile) ?? "99";
  tiles([
    ["In time, last minute", percent(share), `the SLA requires ${percent(target, 3)}`, share === null ? "" : share >= target ? "good" : "bad"],
    [`p${key} response time`, `${number(pipeline.measured_ms[key])}|ms`, `expected now ${number(pipeline.expected_ms)} ms`, ""],
    ["Load", `${number(offered.at(-1)[1])}|/s`, `${pipeline.requests.open} in the pipeline`, ""],
    ["Bottleneck", pipeline.bottleneck, "the stage with the least room", ""],
  ]);
  const nowS = shown.time_s;
  charts.response.update({
    nowS,
    limits: [{ value: report.sla.response_time_ms, text: `SLA: ${number(report.sla.response_time_ms)} ms` }],
    series: [
      { name: `p${key}`, color: "var(--blue)", points: line((one) => one.pipeline.measured_ms[key] ?? null) },
      { name: "expected", color: "var(--orange)", dash: "5 4", points: line((one) => one.pipeline.expected_ms) },
      { name: "p50", color: "var(--teal)", dash: "1.5 4", points: line((one) => one.pipeline.measured_ms["50"] ?? null) },
    ],
  });
  charts.load.update({ nowS, series: [{ name: "load", color: "var(--blue)", area: true, points: offered }] });
  byId("what-if-planner").textContent = "sojourn pipeline plan";
  byId("what-if-source").textContent = "the profiles of the stages as they are believed now";
  whatIf.present(report.model, {
    pipeline: true, hasLoad: offered.at(-1)[1] > 0, hasEnergy: false, response_time_ms: report.sla.response_time_ms, percentile: report.sla.percentile,
    arrival_rate_per_s: offered.findLast(([, rate]) => rate > 0)?.[1] ?? 1,
    margin: pipeline.scaling?.margin ?? 1,
  });
  const head = ["stage", "place", "workers", "busy", "waiting", "mean batch", "budget ms"];
  const rows = pipeline.stages.map((stage) => [
    stage.name, stage.place, number(stage.workers), number(stage.busy), number(stage.queue_length),
    number(stage.mean_batch_size), number(stage.budget_ms),
  ]);
  byId("stages").replaceChildren(
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, cell))))),
  );
}

// Signing in.

function onDenied(message) {
  const had = token.get() !== null;
  token.drop();
  if (had) say(byId("token-problem"), `${message}.`);
  byId("sign-out").hidden = true;
  connection("denied");
  const dialog = byId("sign-in");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      token.set(byId("token").value.trim());
      byId("token").value = "";
      byId("sign-out").hidden = false;
      resolve();
    }, { once: true });
  });
}

byId("sign-in").addEventListener("cancel", (event) => event.preventDefault());
byId("sign-out").hidden = token.get() === null;

function connection(state, reason = null) {
  const lost = reason === null ? "not connected, trying again" : `not connected: ${reason}`;
  const words = { connecting: "connecting", live: shown ? `live from ${shown.replica}` : "live", lost, denied: "signed out" };
  byId("connection").dataset.state = state;
  // The page shows old data.
  byId("main").dataset.stale = state === "lost" ? "yes" : "no";
  say(byId("connection"), words[state]);
}

const stream = new Stream({
  onEvent: (name, content) => {
    const other = shown?.replica !== content.replica;
    onEvent(name, content);
    if (name === "state" && (other || byId("connection").dataset.state !== "live")) connection("live");
  },
  onLost: (reason) => connection("lost", reason),
  onDenied,
});
byId("sign-out").addEventListener("click", () => {
  token.drop();
  stream.again();
});
byId("model").addEventListener("change", render);

stream.run();
