// The what-if: sliders around the present, one question to the planner at a time, and the lines to deploy.

import { byId, make, number, percent, say } from "./format.js";
import { request } from "./stream.js";

const PERCENTILES = [50, 75, 90, 95, 97.5, 98, 99, 99.5, 99.9, 99.95, 99.99];
const STEPS = 100;
const RETRY_MS = 600;

// Sliders move by factors: up to `factor` times the present, and down to its inverse.
const around = (factor) => ({
  max: 2 * STEPS,
  to: (value, now) => Math.round(STEPS * (1 + Math.log(value / now) / Math.log(factor))),
  from: (position, now) => Number((now * factor ** (position / STEPS - 1)).toPrecision(3)),
});
const linear = (low, high, step) => ({
  max: Math.round((high - low) / step),
  to: (value) => Math.round((value - low) / step),
  from: (position) => Number((low + position * step).toPrecision(6)),
});
const nearest = (value) => PERCENTILES.reduce((best, one, index) =>
  Math.abs(Math.log((100 - one) / (100 - value))) < Math.abs(Math.log((100 - PERCENTILES[best]) / (100 - value))) ? index : best, 0);

const FIELDS = [
  { key: "response_time_ms", label: "Response time", unit: "ms", min: 0.01, scale: around(5) },
  { key: "percentile", label: "Percentile", unit: "%", min: 1.01, max: 99.999, scale: { max: PERCENTILES.length - 1, to: nearest, from: (position) => PERCENTILES[position] } },
  { key: "arrival_rate_per_s", label: "Load", unit: "/s", min: 0.001, scale: around(10) },
  { key: "burst_factor", label: "Burst factor", unit: "×", min: 1, scale: linear(1, 5, 0.05), when: (now) => !now.pipeline },
  { key: "margin", label: "Margin on the load", unit: "×", min: 1, scale: linear(1, 5, 0.05), when: (now) => now.pipeline },
  { key: "energy_weight", label: "Energy weight", unit: "", min: 0, scale: linear(0, 5, 0.05), when: (now) => now.energy_weight !== null && !now.pipeline },
  { key: "energy_price", label: "Energy price, per kWh", unit: "", min: 0, scale: linear(0, 2, 0.01), when: (now) => now.hasEnergy },
  { key: "replica_price", label: "Replica price, per hour", unit: "", min: 0, scale: linear(0, 10, 0.05), when: (now) => now.hasEnergy },
];

export class WhatIf {
  constructor() {
    this.form = byId("sliders");
    this.now = null;
    this.then = null;
    this.model = null;
    this.asked = false;
    this.touched = false;
    this.busy = false;
    this.again = false;
    this.inputs = new Map();
    this.form.addEventListener("submit", (event) => event.preventDefault());
    byId("reset").addEventListener("click", () => this.reset());
    // The planner starts when this section becomes visible, not with the page.
    new IntersectionObserver((entries) => {
      this.inView = entries.some((entry) => entry.isIntersecting);
      this.maybeAsk();
    }).observe(byId("what-if"));
  }

  // Sets the present: the SLA, the load, and the config's weights. Until a slider is moved, the question
  // follows the present; afterwards, the answer is compared with it.
  present(model, now) {
    if (this.model !== model) {
      this.model = model;
      this.touched = this.asked = false;
      this.now = null;
    }
    if (this.touched || this.busy) return;
    const moved = !this.now || Math.abs(now.arrival_rate_per_s / this.now.arrival_rate_per_s - 1) > 0.1
      || this.now.loadIs !== now.loadIs || FIELDS.some(({ key }) => key !== "arrival_rate_per_s" && now[key] !== this.now[key]);
    if (!moved) return;
    const first = !this.now || this.now.hasEnergy !== now.hasEnergy || this.now.pipeline !== now.pipeline;
    this.now = { ...now, arrival_rate_per_s: Number(now.arrival_rate_per_s.toPrecision(3)) };
    this.then = { ...this.now };
    if (first) this.build();
    this.show();
    this.asked = false;
    this.maybeAsk();
  }

  build() {
    this.form.replaceChildren();
    this.inputs.clear();
    for (const field of FIELDS.filter(({ when }) => !when || when(this.now))) {
      const id = `what-if-${field.key}`;
      const range = make("input", { type: "range", id, min: 0, max: field.scale.max, step: 1 });
      const exact = make("input", { type: "number", "aria-label": `${field.label}, exactly`, min: field.min, max: field.max, step: "any" });
      range.addEventListener("input", () => this.change(field, field.scale.from(Number(range.value), this.now[field.key])));
      exact.addEventListener("change", () => {
        const value = Number(exact.value);
        if (exact.value === "" || !exact.checkValidity()) this.show();
        else this.change(field, value);
      });
      const unit = make("span", { class: "unit", "aria-hidden": "true" }, field.unit);
      this.form.append(make("div", { class: "slider" }, make("label", { for: id }, field.label), make("span", {}, exact, unit), range));
      this.inputs.set(field.key, { field, range, exact });
    }
  }

  change(field, value) {
    this.touched = true;
    this.then = { ...this.then, [field.key]: value };
    this.show();
    this.ask();
  }

  reset() {
    this.touched = false;
    this.then = { ...this.now };
    this.show();
    this.ask();
  }

  show() {
    for (const [key, { field, range, exact }] of this.inputs) {
      const value = this.then[key];
      range.value = field.scale.to(value, this.now[key]);
      range.setAttribute("aria-valuetext", `${number(value, 5)} ${field.unit}`);
      if (document.activeElement !== exact || Number(exact.value) !== value) exact.value = value;
    }
    this.yaml(null);
  }

  maybeAsk() {
    if (this.inView && this.now && !this.asked) this.ask();
  }

  // One question at a time; later changes are sent next.
  async ask() {
    this.asked = true;
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    const waiting = setTimeout(() => byId("outcome").setAttribute("aria-busy", "true"), 150);
    const slow = setTimeout(() => this.tell("The planner is at work …"), 700);
    try {
      do {
        this.again = false;
        await this.askOnce();
      } while (this.again);
    } catch (error) {
      this.tell(`The planner did not answer: ${error.message}.`, true);
    } finally {
      clearTimeout(waiting);
      clearTimeout(slow);
      this.busy = false;
      byId("outcome").setAttribute("aria-busy", "false");
    }
  }

  async askOnce() {
    const body = JSON.stringify({ model: this.model, now: this.question(this.now), then: this.question(this.then) });
    const answer = await request("plan", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    if (answer.status === 429) {
      // Another page has a question, too.
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      this.again = true;
      return;
    }
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
    if (!this.again) this.answered(content);
  }

  question(values) {
    if (values.pipeline) {
      const { response_time_ms, percentile, arrival_rate_per_s, margin } = values;
      return { response_time_ms, percentile, arrival_rate_per_s, margin };
    }
    const prices = values.hasEnergy && (this.then.energy_price > 0 || this.then.replica_price > 0);
    return {
      response_time_ms: values.response_time_ms, percentile: values.percentile,
      arrival_rate_per_s: values.arrival_rate_per_s, burst_factor: values.burst_factor,
      energy_weight: values.energy_weight,
      // Both scenarios have the same prices.
      ...(prices ? { energy_price: this.then.energy_price, replica_price: this.then.replica_price } : {}),
    };
  }

  tell(words, bad = false) {
    byId("summary").dataset.tone = bad ? "bad" : "";
    say(byId("summary"), words);
  }

  answered({ now, then }) {
    const rows = [
      ["Workers", (one) => one.workers, (value) => number(value)],
      ["Replicas", (one) => one.replicas, (value) => number(value)],
      [`p${number(this.then.percentile, 5)} predicted`, (one) => one.predicted_percentile_ms, (value) => `${number(value)} ms`],
      ["In time", (one) => one.predicted_service_level, (value) => percent(value)],
      ["Power of the fleet", (one) => one.mean_power_w, (value) => `${number(value)} W`],
      ["Cost per hour", (one) => one.cost_per_h, (value) => number(value)],
    ].filter(([, get]) => Number.isFinite(get(now)) || Number.isFinite(get(then)));
    const cells = rows.map(([name, get, format]) => {
      const was = Number.isFinite(get(now)) ? format(get(now)) : "–";
      const is = Number.isFinite(get(then)) ? format(get(then)) : "–";
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "was" }, was), make("td", {}, is, delta(get(now), get(then))));
    });
    const head = make("tr", {}, make("td"), make("th", { scope: "col" }, `${this.now.loadIs}, ${number(this.now.arrival_rate_per_s)}/s`), make("th", { scope: "col" }, `what if, ${number(this.then.arrival_rate_per_s)}/s`));
    byId("answers").replaceChildren(
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...cells)),
      ...(then.stages ? [stages(now, then)] : []),
    );
    this.tell(then.error ?? (then.stages ? inWords(then, this.then) : sentence(then, this.then)), Boolean(then.error));
    this.yaml(then);
  }

  yaml(plan) {
    const { response_time_ms: time, percentile, burst_factor: burst, energy_weight: weight } = this.then;
    const lines = [
      "user_config:", "  sla:", `    response_time_ms: ${time}`, `    percentile: ${percentile}`,
    ];
    if (this.now.pipeline) {
      if (plan?.stages) lines.push("", "# workers of the stages", ...plan.stages.map((stage) => `#   ${stage.name}: ${stage.workers}`));
      say(byId("yaml"), lines.join("\n"));
      return;
    }
    if (weight !== null && this.now.hasEnergy) {
      lines.push("  policy:", "    objective: weights", "    latency_weight: 1", `    energy_weight: ${weight}`);
    }
    lines.push("  autoscaler:", `    burst_factor: ${burst}`);
    if (plan?.replicas) {
      lines.push("", `# needs ${plan.replicas} replica${plan.replicas > 1 ? "s" : ""} at ${number(this.then.arrival_rate_per_s)}/s`);
    }
    say(byId("yaml"), lines.join("\n"));
  }
}

function delta(was, is) {
  if (!Number.isFinite(was) || !Number.isFinite(is) || was === is || was === 0) return null;
  const change = is / was - 1;
  if (Math.abs(change) < 5e-4) return null;
  return make("span", { class: "delta" }, `${change > 0 ? "+" : "−"}${number(100 * Math.abs(change), 2)}%`);
}

// The stages of a pipeline in the present plan and in the requested one.
function stages(now, then) {
  const before = new Map((now.stages ?? []).map((stage) => [stage.name, stage]));
  const change = (was, is, format) => (was === undefined || format(was) === format(is) ? format(is) : `${format(was)} → ${format(is)}`);
  const rows = then.stages.map((stage) => {
    const was = before.get(stage.name) ?? {};
    const cells = [
      change(was.workers, stage.workers, number), change(was.mean_batch_size, stage.mean_batch_size, (size) => number(size, 2)),
      change(was.utilization, stage.utilization, (share) => percent(share, 0)), `${number(stage.percentile_ms)} ms`,
    ];
    return make("tr", {}, make("th", { scope: "row" }, stage.name), ...cells.map((cell) => make("td", {}, cell)));
  });
  const head = ["stage", "workers", "mean batch", "busy", "percentile"].map((name) => make("th", { scope: "col" }, name));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Stages of the plan" },
    make("table", { class: "plain", id: "planned-stages" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
}

function inWords(plan, asked) {
  const busiest = plan.stages.reduce((most, stage) => (stage.utilization > most.utilization ? stage : most));
  return `${number(asked.percentile, 5)}% within ${number(asked.response_time_ms)} ms; stage ${busiest.name} is the busiest.`;
}

function sentence(plan, asked) {
  const starts = plan.control_limit === null
    ? "The replicas cannot carry this load."
    : `Each starts a batch once ${plan.control_limit} wait${plan.control_limit === 1 ? "s" : ""}`
      + (Number.isFinite(plan.max_wait_ms) && plan.control_limit > 1 ? `, or the oldest has waited ${number(plan.max_wait_ms)} ms.` : ".");
  const limit = plan.bottleneck ? ` Its ${plan.bottleneck === "event_loop" ? "event loop" : plan.bottleneck} is the busier stage.` : "";
  const misses = plan.meets_sla ? "" : ` ${number(asked.percentile, 5)}% within ${number(asked.response_time_ms)} ms is not kept.`;
  return `${starts}${limit}${misses}`;
}
