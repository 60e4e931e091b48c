// The page: receives events, keeps the last minutes, and draws.

import { BarChart, PolicyChart, TimeChart } from "./charts.js";
import { byId, bytes, clock, duration, make, number, percent, say } from "./format.js";
import { closest, rates, since } from "./history.js";
import { Stream, token } from "./stream.js";
import { meters, tiles } from "./widgets.js";
import { WhatIf } from "./whatif.js";

const WINDOW_S = 300;
const MINUTE_S = 60;
const QUIET_PER_S = 0.01;
// The autoscaler records a decision at least once a minute.
const LOG_GAP_S = 90;

const charts = {
  response: new TimeChart(byId("chart-response"), "Response time", { unit: " ms", windowS: WINDOW_S }),
  load: new TimeChart(byId("chart-load"), "Load", { unit: "/s", windowS: WINDOW_S }),
  replicas: new TimeChart(byId("chart-replicas"), "Replicas", { windowS: WINDOW_S, whole: true }),
  policy: new PolicyChart(byId("chart-policy"), "Policy"),
  sizes: new BarChart(byId("chart-sizes"), "Batch sizes", "requests in a batch"),
  power: new TimeChart(byId("chart-power"), "Power", { unit: " W", windowS: WINDOW_S }),
};
const whatIf = new WhatIf();

let newest = [];
let shown = null;
// The shown replica's reports of the last minutes, by model.
const histories = new Map();

function onEvent(content) {
  byId("main").setAttribute("aria-busy", "false");
  models(content.models);
  // Another replica may answer after a reconnect.
  if (shown?.replica !== content.replica) histories.clear();
  for (const report of content.models) {
    const kept = (histories.get(report.model) ?? []).filter(({ timeS }) => timeS >= content.time_s - WINDOW_S - 5);
    histories.set(report.model, [...kept, { timeS: content.time_s, report: { ...report, last_batches: null, actions: null } }]);
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
  const kept = histories.get(report.model);
  const isFirst = report === reports[0];
  document.title = `${report.model} · Sojourn console`;
  for (const element of document.querySelectorAll(".who")) say(element, `Of ${shown.replica}.`);
  if (report.pipeline) renderPipeline(report, kept);
  else renderModel(report, kept, isFirst);
  renderStore(shown.store);
}

// Of the requests of the last minute, the share in time; a failed request is not.
function shareInTime({ answered = 0, late = 0, failed = 0 }) {
  return answered + failed > 0 ? Math.max(0, 1 - (late + failed) / (answered + failed)) : null;
}

// `measured(report)` is { measured_ms, answered } of a report, and `expected` a series to compare with.
function renderResponse(kept, sla, key, measured, expected) {
  // Without the seconds in which nothing was answered.
  const points = (of) => kept.flatMap(({ timeS, report }, index) =>
    (index > 0 && measured(report).answered > measured(kept[index - 1].report).answered ? [[timeS, measured(report).measured_ms[of]]] : []));
  charts.response.update({
    nowS: shown.time_s,
    limits: [{ value: sla.response_time_ms, text: `SLA: ${number(sla.response_time_ms)} ms` }],
    series: [
      { name: `p${key}`, color: "var(--blue)", points: points(key) },
      { ...expected, color: "var(--orange)", dash: "5 4" },
      { name: "p50", color: "var(--teal)", dash: "1.5 4", points: points("50") },
    ],
  });
}

// The page's verdict; returns the tile that says the same.
function hero(report, minute) {
  const target = report.sla.percentile / 100;
  const share = shareInTime(minute);
  const isKept = share === null ? null : share >= target;
  const several = shown.fleet.newest?.replicas > 1 ? ` · replica ${shown.replica}` : "";
  byId("hero").dataset.kept = isKept === null ? "" : isKept ? "yes" : "no";
  say(byId("sla"), `${report.model} · ${report.sla_in_words}${several}`);
  const span = minute.seconds < 55 ? `in the last ${Math.max(1, Math.round(minute.seconds))} s` : "in the last minute";
  say(byId("verdict"), isKept === null ? "No request was answered lately" : `${isKept ? "The SLA is kept" : "The SLA is missed"}: ${percent(share)} in time ${span}`);
  const notes = [];
  if (report.table === "solving") notes.push("A new policy is being solved.");
  if (report.bottleneck === "neither") notes.push("Other processes take the cores, so response times cannot be predicted.");
  if (report.wait_factor < 0.99) notes.push(`Waits are shortened to ${percent(report.wait_factor, 0)}, because more was late than predicted.`);
  if (report.model_errors?.requests) notes.push(`The model has failed on ${number(report.model_errors.requests)} requests.`);
  if (report.cpus_note) notes.push(`${report.cpus_note}.`);
  say(byId("rejected"), report.config_error ? `The newest config is rejected, and an older one is in force, with its tokens: ${report.config_error}.` : "");
  say(byId("notes"), notes.join(" "));
  renderRefusals(minute);
  return ["In time, 1 min", percent(share), `the SLA requires ${percent(target, 3)}`, isKept === null ? "" : isKept ? "good" : "bad"];
}

// Refusals by reason, as clients get it in X-Sojourn-Reason.
function renderRefusals(minute) {
  const refused = Object.entries(minute).filter(([key, count]) => key.startsWith("refused_") && count).sort((a, b) => b[1] - a[1]);
  const all = refused.reduce((sum, [, count]) => sum + count, 0);
  say(byId("refusals-words"), all ? "Share and rate of the last minute, by reason." : "None in the last minute.");
  meters(byId("refusals"), refused.map(([key, count]) => [key.slice(8), count / all, `${number(count / minute.seconds)}/s`]));
}

const memoryTile = ({ process: { memory_bytes: memory, up_s: upS } }) =>
  ["Replica memory", bytes(memory).replace(" ", "|"), `runs for ${duration(upS)}`, ""];

function renderModel(report, kept, isFirst) {
  const { sla } = report;
  const inTime = hero(report, report.last_minute);

  const fleet = isFirst ? newest.at(-1) ?? null : null;
  const key = closest({ ...report.measured_ms, ...report.predicted_ms }, sla.percentile) ?? "99";
  const measuredMs = shareInTime(report.last_minute) === null ? null : report.measured_ms[key];
  const predicted = report.predicted_ms;
  // The estimate of the load never falls to 0 by itself.
  const quiet = (perS) => (perS < QUIET_PER_S ? 0 : perS);
  const load = quiet(fleet?.arrival_rate_per_s ?? report.arrival_rate_per_s);
  const power = since(kept, 10, ({ device }) => device.energy_j);
  const done = since(kept, 10, ({ rows }) => rows.completed).value;
  const isMetered = report.device.energy_j !== null;
  const powerW = isMetered && power.seconds > 0 ? power.value / power.seconds : null;
  const predictedW = report.power_w.predicted;
  const busy = since(kept, 10, ({ device }) => device.busy_s);
  // At little load nothing is a bottleneck.
  const shares = [busy.seconds > 0 ? Math.min(1, busy.value / busy.seconds) : null, report.event_loop.utilization];
  tiles([
    inTime,
    [`Response p${key}`, `${number(measuredMs)}|ms`, predicted[key] ? `predicted ${number(predicted[key])} ms` : "no prediction now", ""],
    [fleet ? "Fleet load" : "Replica load", `${number(load)}|/s`, fleet?.demand_per_s ? `sized for ${number(fleet.demand_per_s)}/s` : `${report.queue_length} waiting`, ""],
    ["Replicas", fleet ? number(fleet.replicas) : "–", fleet ? replicaWords(fleet) : "no autoscaler decides", ""],
    ...(isMetered ? [["Replica power", `${number(powerW)}|W`, predictedW ? `predicted ${number(predictedW)} W` : done > 0 ? `${number((1000 * power.value) / done)} mJ per request` : "idle", ""]] : []),
    ["Bottleneck", Math.max(...shares) < 0.05 ? "none" : report.bottleneck.replace("_", " "), `${percent(shares[0], 0)} device, ${percent(shares[1], 0)} event loop`, ""],
    memoryTile(report),
  ]);

  const nowS = shown.time_s;
  const line = (get) => kept.map(({ timeS, report: one }) => [timeS, get(one)]);
  renderResponse(
    kept, sla, key, (one) => ({ measured_ms: one.measured_ms, answered: one.rows.answered }),
    { name: `p${key} predicted`, points: line((one) => one.predicted_ms[key]) },
  );
  const log = [...shown.fleet.decisions, ...newest].sort((a, b) => a.time_s - b.time_s);
  const fleetLine = (get) => log.map((entry) => [entry.time_s, get(entry)]);
  const ofReplica = { name: "this replica", color: "var(--teal)", dash: "1.5 4", points: line((one) => quiet(one.arrival_rate_per_s)) };
  charts.load.update({
    nowS,
    series: fleet
      ? [
          { name: "load", color: "var(--blue)", area: true, gapS: LOG_GAP_S, points: fleetLine((one) => one.arrival_rate_per_s) },
          { name: "demand", color: "var(--orange)", dash: "5 4", gapS: LOG_GAP_S, points: fleetLine((one) => one.demand_per_s) },
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
  whatIf.present(report.model, {
    response_time_ms: sla.response_time_ms, percentile: sla.percentile,
    ...assumedLoad(load, fleet ? log.map((one) => one.arrival_rate_per_s) : kept.map((one) => one.report.arrival_rate_per_s), report.sla_rate_per_s),
    burst_factor: report.autoscaler.burst_factor, hasEnergy: report.has_energy,
    energy_weight: energyWeight(report), energy_price: 0, replica_price: 0,
  });
}

// The load to ask about: with hardly any now, the highest of late, or else one that fits one replica.
function assumedLoad(nowPerS, latePerS, capacityPerS) {
  const peakPerS = Math.max(0, ...latePerS);
  if (nowPerS > 0.01 * peakPerS) return { arrival_rate_per_s: nowPerS, loadIs: "now" };
  if (peakPerS >= QUIET_PER_S) return { arrival_rate_per_s: peakPerS, loadIs: "recent peak" };
  return { arrival_rate_per_s: (Number.isFinite(capacityPerS) && 0.9 * capacityPerS) || 1, loadIs: "one replica" };
}

// As `policy_objective` of the config: without energy, `auto` minimizes the mean response time.
function energyWeight({ objective, has_energy: hasEnergy }) {
  if (objective.objective === "weights") return objective.energy_weight;
  return objective.objective === "auto" && !hasEnergy ? 0 : null;
}

function replicaWords({ replicas, required_replicas: required, target_replicas: target, stuck_replicas: stuck, predicted_service_level: level }) {
  const lost = deaths().filter(({ time_s: timeS }) => timeS >= shown.time_s - MINUTE_S).length;
  if (lost) return `${lost} lost in the last minute`;
  if (stuck) return `${stuck} do not start`;
  if (target !== replicas) return `changed from ${target}`;
  if (level !== null) return `keep ${percent(level)} in time, predicted`;
  return required === null ? "none required yet" : `${required} required`;
}

const deaths = () => shown.fleet.lost_replicas ?? [];
let reasonsShown = "";

// Changes of the number of replicas, and replicas that were lost, with reasons.
function reasons() {
  const { decisions } = shown.fleet;
  const changes = decisions.filter((entry, index) => index === 0 || entry.replicas !== decisions[index - 1].replicas).slice(-12);
  const lost = deaths().map(({ time_s, replica, reason }) => ({ time_s, replicas: "lost", reason: `${replica} ${reason}` }));
  const rows = [...changes, ...lost].sort((a, b) => b.time_s - a.time_s);
  const key = JSON.stringify(rows.map(({ time_s: timeS }) => timeS));
  if (key === reasonsShown) return;
  reasonsShown = key;
  byId("reasons").replaceChildren(
    ...rows.map(({ time_s: timeS, replicas, reason }) =>
      make("li", {}, make("time", {}, clock(timeS)), make("span", { class: "count" }, String(replicas)), make("span", { class: "why" }, reason))),
  );
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
    `${bytes(tier.used_bytes)} of ${bytes(tier.budget_bytes)} · ${number(tier.hits, 6)} hits, ${number(tier.misses, 6)} misses`,
  ]));
}

function renderPipeline(report, kept) {
  const { pipeline } = report;
  for (const id of ["card-replicas", "card-policy", "card-sizes", "card-power"]) byId(id).hidden = true;
  byId("card-pipeline").hidden = false;
  say(byId("response-words"), "Measured over ten seconds, with the expected time of a new request.");
  say(byId("load-words"), "Requests to this replica.");
  const inTime = hero(report, pipeline.last_minute);
  const offered = rates(kept, (one) => one.pipeline.requests.offered);
  const load = offered.at(-1)[1];
  const line = (get) => kept.map(({ timeS, report: one }) => [timeS, get(one)]);
  const key = closest(pipeline.measured_ms, report.sla.percentile) ?? "99";
  tiles([
    inTime,
    [`Response p${key}`, `${number(pipeline.measured_ms[key])}|ms`, `expected now ${number(pipeline.expected_ms)} ms`, ""],
    ["Load", `${number(load)}|/s`, `${pipeline.requests.open} in the pipeline`, ""],
    ["Bottleneck", load > 0 ? pipeline.bottleneck : "none", "the stage with the least room", ""],
    memoryTile(report),
  ]);
  renderResponse(
    kept, report.sla, key, (one) => ({ measured_ms: one.pipeline.measured_ms, answered: one.pipeline.requests.completed }),
    { name: "expected", points: line((one) => one.pipeline.expected_ms) },
  );
  charts.load.update({ nowS: shown.time_s, series: [{ name: "load", color: "var(--blue)", area: true, points: offered }] });
  byId("what-if-planner").textContent = "sojourn pipeline plan";
  byId("what-if-source").textContent = "the profiles of the stages as they are believed now";
  whatIf.present(report.model, {
    pipeline: true, hasEnergy: false, response_time_ms: report.sla.response_time_ms, percentile: report.sla.percentile,
    // Without batches.
    ...assumedLoad(load, offered.map(([, perS]) => perS), 1000 * Math.min(...pipeline.stages.map((stage) => stage.workers / stage.latency_ms))),
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
  onEvent: (content) => {
    const other = shown?.replica !== content.replica;
    onEvent(content);
    if (other || byId("connection").dataset.state !== "live") connection("live");
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
