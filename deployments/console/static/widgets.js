// Rows of figures, updated each second; only changed elements are touched.

import { byId, make, percent, say } from "./format.js";

function fill(host, count, create) {
  while (host.children.length > count) host.lastChild.remove();
  while (host.children.length < count) host.append(create());
}

// `rows`: name, "figure|unit", the text below, and a tone.
export function tiles(rows) {
  const host = byId("tiles");
  fill(host, rows.length, () => make("div", { class: "tile" }, make("dt"), make("dd", { class: "value" }), make("dd", { class: "more" })));
  rows.forEach(([name, value, more, tone], index) => {
    const [title, main, below] = host.children[index].children;
    host.children[index].dataset.tone = tone;
    say(title, name);
    const [figure, unit] = value.split("|");
    if (main.textContent !== `${figure}${unit ? ` ${unit}` : ""}`) {
      main.replaceChildren(figure, ...(unit ? [make("small", {}, ` ${unit}`)] : []));
    }
    say(below, more);
  });
}

// `rows`: name, share, and detail.
export function meters(host, rows) {
  fill(host, rows.length, () => {
    const track = make("div", { class: "track" }, make("div", { class: "fill" }));
    return make("div", { class: "meter" }, make("span", { class: "name" }), track, make("span", { class: "amount" }), make("span", { class: "detail" }));
  });
  rows.forEach(([name, share, detail], index) => {
    const [title, track, amount, below] = host.children[index].children;
    say(title, name);
    track.firstChild.style.width = `${100 * Math.min(1, share ?? 0)}%`;
    say(amount, percent(share, 0));
    say(below, detail);
  });
}
