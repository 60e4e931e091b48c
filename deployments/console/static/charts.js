// Small charts as SVG. Series differ in color, in dash and by name; a cursor moves by mouse and keyboard.

import { clock, draw, make, number } from "./format.js";

const MARGIN = { top: 8, right: 12, bottom: 22, left: 48 };
// Reports come each second.
const GAP_S = 5;

function ticks(low, high, most = 4) {
  const span = Math.max(high - low, 1e-9);
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= most);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9; tick += step) found.push(tick);
  return found;
}

class Chart {
  constructor(host, label) {
    this.host = host;
    this.svg = draw("svg", { role: "img", "aria-label": label });
    this.label = label;
    host.append(this.svg);
    new ResizeObserver(() => this.latest && this.render()).observe(this.svg);
  }

  update(content) {
    this.latest = content;
    this.render();
  }

  frame() {
    const { width, height } = this.svg.getBoundingClientRect();
    this.width = Math.max(width, 120);
    this.height = Math.max(height, 60);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    this.left = MARGIN.left;
    this.right = this.width - MARGIN.right;
    this.top = MARGIN.top;
    this.bottom = this.height - MARGIN.bottom;
  }

  text(x, y, words, attributes = {}) {
    const element = draw("text", { x, y, ...attributes });
    element.textContent = words;
    this.svg.append(element);
    return element;
  }

  yAxis(values, scale, format) {
    for (const value of values) {
      const y = scale(value);
      this.svg.append(draw("line", { class: "axis", x1: this.left, x2: this.right, y1: y, y2: y }));
      this.text(this.left - 8, y + 4, format(value), { "text-anchor": "end" });
    }
  }

  empty(words) {
    this.text((this.left + this.right) / 2, (this.top + this.bottom) / 2, words, { "text-anchor": "middle" });
  }
}

// Series over the last minutes. `series`: name, color, points [[timeS, value or null], …], and optionally dash,
// step, area, and gapS, the longest time between two points that belong together. `limits`: value and text of lines across.
export class TimeChart extends Chart {
  constructor(host, label, { unit = "", windowS = 300, whole = false } = {}) {
    super(host, label);
    Object.assign(this, { unit, windowS, whole, cursorS: null });
    this.legend = make("div", { class: "legend" });
    host.prepend(this.legend);
    this.svg.setAttribute("tabindex", "0");
    this.svg.addEventListener("pointermove", (event) => {
      const { left } = this.svg.getBoundingClientRect();
      this.cursorS = this.timeAt(event.clientX - left);
      this.render();
    });
    for (const gone of ["pointerleave", "blur"]) {
      this.svg.addEventListener(gone, () => {
        this.cursorS = null;
        if (this.latest) this.render();
      });
    }
    this.svg.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -5, ArrowRight: 5, Home: -Infinity, End: Infinity }[event.key];
      if (!steps || !this.latest) return;
      event.preventDefault();
      const { nowS } = this.latest;
      const from = this.cursorS ?? nowS;
      this.cursorS = Math.min(nowS, Math.max(nowS - this.windowS, from + steps));
      this.render();
    });
  }

  timeAt(x) {
    const { nowS } = this.latest;
    const share = (x - this.left) / (this.right - this.left);
    return nowS - this.windowS * (1 - Math.min(1, Math.max(0, share)));
  }

  render() {
    const { series, limits = [], nowS } = this.latest;
    this.frame();
    const x = (timeS) => this.right - ((nowS - timeS) / this.windowS) * (this.right - this.left);
    const shown = series.map((one) => ({
      gapS: one.step ? Infinity : GAP_S, ...one, points: visible(one.points, nowS - this.windowS, one.step, nowS),
    }));
    const values = [...limits.map(({ value }) => value), ...shown.flatMap(({ points }) => points.map(([, v]) => v))];
    const highest = Math.max(...values.filter(Number.isFinite), 0) || 1;
    const top = this.whole ? Math.max(2, highest + 0.5) : 1.12 * highest;
    const y = (value) => this.bottom - (value / top) * (this.bottom - this.top);
    const marks = ticks(0, top).filter((tick) => !this.whole || Number.isInteger(tick));
    this.yAxis(marks, y, (value) => number(value));
    for (let back = 0; back <= this.windowS; back += 60) {
      if (this.width < 380 && back % 120) continue;
      const words = back === 0 ? "now" : `−${back / 60} min`;
      const anchor = back === 0 ? "end" : back === this.windowS ? "start" : "middle";
      this.text(x(nowS - back), this.height - 5, words, { "text-anchor": anchor });
    }
    for (const { value, text } of limits) {
      this.svg.append(draw("line", { class: "limit", x1: this.left, x2: this.right, y1: y(value), y2: y(value) }));
      this.text(this.left + 6, y(value) - 5, text, { class: "limit-text" });
    }
    for (const one of shown) this.line(one, x, y);
    const at = this.cursorS;
    if (at !== null) {
      this.svg.append(draw("line", { class: "cursor", x1: x(at), x2: x(at), y1: this.top, y2: this.bottom }));
    }
    this.words(shown, at ?? nowS, at !== null);
  }

  line({ points, color, dash, step, area, gapS }, x, y) {
    // A missing value, or a gap in time, ends a piece of the line.
    const pieces = [];
    let lastS = null;
    for (const [timeS, value] of points) {
      const isKnown = Number.isFinite(value);
      if (isKnown && (lastS === null || timeS - lastS > gapS)) pieces.push([]);
      if (isKnown) pieces.at(-1).push([x(timeS).toFixed(1), y(value).toFixed(1)]);
      lastS = isKnown ? timeS : null;
    }
    const paths = pieces.map((piece) => ({
      // A piece of one point is a dot.
      piece, d: piece.map(([px, py], index) => (index === 0 ? `M${px} ${py}h0` : step ? `H${px}V${py}` : `L${px} ${py}`)).join(""),
    }));
    if (!paths.length) return;
    if (area) {
      const filled = paths.map(({ piece, d }) => `${d}L${piece.at(-1)[0]} ${this.bottom}L${piece[0][0]} ${this.bottom}Z`).join("");
      this.svg.append(draw("path", { class: "area", fill: color, d: filled }));
    }
    this.svg.append(draw("path", { class: "path", stroke: color, "stroke-dasharray": dash, d: paths.map(({ d }) => d).join("") }));
    const [cx, cy] = paths.at(-1).piece.at(-1);
    this.svg.append(draw("circle", { cx, cy, r: 3, fill: color }));
  }

  words(series, timeS, isCursor) {
    const parts = series.map((one) => {
      const key = draw("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" });
      key.append(draw("line", { x1: 0, x2: 20, y1: 5, y2: 5, stroke: one.color, "stroke-width": 3, "stroke-dasharray": one.dash }));
      const value = valueAt(one, timeS);
      return make("span", {}, key, `${one.name} `, make("b", {}, `${number(value)}${value === null ? "" : this.unit}`));
    });
    if (isCursor) parts.unshift(make("span", {}, clock(timeS)));
    this.legend.replaceChildren(...parts);
    const now = series.map((one) => `${one.name} ${number(valueAt(one, timeS))}${this.unit}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.label}: ${now}`);
  }
}

function visible(points, sinceS, step, nowS) {
  const start = points.findIndex(([timeS]) => timeS >= sinceS);
  if (!step) return start < 0 ? [] : points.slice(start);
  // A step holds until the next one, and the last one until now.
  const before = start < 0 ? points.at(-1) : points[start - 1];
  const inside = start < 0 ? [] : points.slice(start);
  const last = points.at(-1);
  return [...(before ? [[sinceS, before[1]]] : []), ...inside, ...(last ? [[nowS, last[1]]] : [])];
}

function valueAt({ points, gapS }, timeS) {
  let found = null;
  for (const [at, value] of points) {
    if (at > timeS + 0.5) break;
    found = Number.isFinite(value) && timeS - at <= gapS ? value : null;
  }
  return found;
}

// Bars of shares, by whole numbers.
export class BarChart extends Chart {
  constructor(host, label, axis) {
    super(host, label);
    this.axis = axis;
  }

  render() {
    const { shares, most } = this.latest;
    this.frame();
    this.bottom -= 14;
    const highest = Math.max(...shares.values(), 0);
    if (!highest) {
      this.empty("no batch lately");
      return;
    }
    const top = 1.1 * highest;
    const y = (share) => this.bottom - (share / top) * (this.bottom - this.top);
    const width = (this.right - this.left) / most;
    this.yAxis(ticks(0, top, 3), y, (share) => `${number(100 * share)}%`);
    for (const [size, share] of shares) {
      const bar = draw("rect", {
        x: this.left + (size - 1) * width + Math.min(1, width / 8), y: y(share),
        width: Math.max(width - Math.min(2, width / 4), 0.5), height: Math.max(this.bottom - y(share), 1),
        rx: Math.min(2, width / 4), fill: "var(--blue)",
      });
      bar.append(draw("title"));
      bar.lastChild.textContent = `${size}: ${number(100 * share)}%`;
      this.svg.append(bar);
    }
    for (const size of [1, ...ticks(1, most, 6).filter((tick) => tick > 1 && Number.isInteger(tick))]) {
      this.text(this.left + (size - 0.5) * width, this.bottom + 15, number(size), { "text-anchor": "middle" });
    }
    this.text((this.left + this.right) / 2, this.height - 3, this.axis, { "text-anchor": "middle" });
    const [common] = [...shares].sort((a, b) => b[1] - a[1]);
    this.svg.setAttribute("aria-label", `${this.label}: most often ${common[0]}, ${number(100 * common[1])}% of the batches`);
  }
}

const MARKS = {
  limit: ["at the control limit", "var(--ink)", (x, y) => draw("circle", { cx: x, cy: y, r: 4 })],
  max_wait: ["after the longest wait", "var(--orange)", (x, y) => draw("path", { d: `M${x} ${y - 5.5}L${x + 5.5} ${y}L${x} ${y + 5.5}L${x - 5.5} ${y}Z` })],
  full: ["as a full batch", "var(--teal)", (x, y) => draw("rect", { x: x - 4, y: y - 4, width: 8, height: 8 })],
  other: ["for other reasons", "var(--faint)", (x, y) => draw("path", { d: `M${x} ${y - 5}L${x + 5} ${y + 4}H${x - 5}Z` })],
};
const ROWS = 14;

// The policy: queue length × age of the oldest request → wait, or start a batch of so many.
export class PolicyChart extends Chart {
  constructor(host, label) {
    super(host, label);
    this.legend = make("div", { class: "legend" });
    host.prepend(this.legend);
  }

  render() {
    const { actions, longestWaitMs, controlLimit, batches, queueLength, limitMs } = this.latest;
    this.frame();
    this.bottom -= 16;
    this.top += 20;
    const starts = batches.map((batch) => [batch.size + batch.queue_length_left, batch.oldest_wait_ms, batch.reason]);
    const largest = Math.max(...actions);
    const longest = Math.max(...starts.map(([length]) => length), 0);
    const lengths = Math.max(8, Math.min(actions.length + 1, 2 * controlLimit + 4), Math.min(longest + 1, 2 * largest));
    const oldestMs = Math.max(...starts.map(([, age]) => age), 1);
    const waits = Number.isFinite(longestWaitMs) && longestWaitMs > 0 ? longestWaitMs : 0;
    const topMs = Math.max(1.3 * waits, waits ? 1.1 * oldestMs : Math.max(1.3 * oldestMs, 0.5 * limitMs));
    const width = (this.right - this.left) / lengths;
    const x = (length) => this.left + (length - 0.5) * width;
    const y = (ageMs) => this.bottom - (Math.min(ageMs, topMs) / topMs) * (this.bottom - this.top);
    const rowMs = topMs / ROWS;
    for (let length = 1; length <= lengths; length += 1) {
      const size = actions[Math.min(length, actions.length - 1)];
      for (let row = 0; row < ROWS; row += 1) {
        const late = waits > 0 && (row + 0.5) * rowMs >= waits;
        const batch = size || (late ? Math.min(length, largest) : 0);
        this.svg.append(draw("rect", {
          x: x(length) - width / 2 + 0.6, width: Math.max(width - 1.2, 0.6),
          y: y((row + 1) * rowMs) + 0.6, height: Math.max((this.bottom - this.top) / ROWS - 1.2, 0.6), rx: 1.5,
          fill: batch ? "var(--blue)" : "var(--wait)", opacity: batch ? 0.2 + 0.55 * (batch / largest) : 1,
        }));
      }
    }
    for (const tick of ticks(0, topMs, 4)) this.text(this.left - 8, y(tick) + 4, number(tick), { "text-anchor": "end" });
    for (const tick of ticks(1, lengths, this.width < 420 ? 5 : 9)) {
      if (Number.isInteger(tick) && tick >= 1) this.text(x(tick), this.bottom + 15, number(tick), { "text-anchor": "middle" });
    }
    this.text(this.left - 40, this.top - 9, "oldest request, ms", {});
    this.text((this.left + this.right) / 2, this.height - 3, "requests that wait", { "text-anchor": "middle" });
    if (controlLimit > 2) {
      const wide = (controlLimit - 1) * width;
      if (wide > 40 && this.bottom - y(waits || topMs) > 16) this.text(this.left + wide / 2, (y(waits || topMs) + this.bottom) / 2 + 4, "wait", { class: "strong", "text-anchor": "middle" });
    }
    const startX = controlLimit <= lengths ? (x(controlLimit) - width / 2 + this.right) / 2 : (this.left + this.right) / 2;
    this.text(startX, (this.top + y(waits || topMs)) / 2 + 4, "start", { class: "strong", "text-anchor": "middle" });
    const seen = new Map();
    for (const [length, ageMs, reason] of starts) {
      const kind = MARKS[reason] ? reason : "other";
      seen.set(kind, (seen.get(kind) ?? 0) + 1);
      const mark = MARKS[kind][2](x(Math.min(length, lengths)), y(ageMs));
      mark.setAttribute("fill", MARKS[kind][1]);
      mark.setAttribute("stroke", "var(--card)");
      mark.setAttribute("stroke-width", 1.2);
      this.svg.append(mark);
    }
    this.legend.replaceChildren(...[...seen].map(([kind, count]) => {
      const key = draw("svg", { viewBox: "0 0 20 12", "aria-hidden": "true" });
      key.append(MARKS[kind][2](10, 6));
      key.firstChild.setAttribute("fill", MARKS[kind][1]);
      return make("span", {}, key, make("b", {}, String(count)), ` started ${MARKS[kind][0]}`);
    }));
    const rule = waits
      ? `wait for ${controlLimit} requests, at most ${number(waits)} ms`
      : controlLimit > 1 ? `wait for ${controlLimit} requests` : "start whenever the device is free";
    this.svg.setAttribute("aria-label", `${this.label}: ${rule}. ${queueLength} wait now.`);
  }
}
