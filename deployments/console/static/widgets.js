// Rows of figures, updated each second; only changed elements are touched.

import { byId, make, percent, say } from "./format.js";

// `rows`: name, "figure|unit", the text below, and a tone.
export function tiles(rows) {
  const host = byId("tiles");
  while (host.children.length > rows.length) host.lastChild.remove();
  while (host.children.length < rows.length) {
    host.append(make("div", { class: "tile" }, make("dt"), make("dd", { class: "value" }), make("dd", { class: "more" })));
  }
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

// `rows`: name, share, detail, and whether it is the bottleneck.
export function meters(host, rows) {
  while (host.children.length > rows.length) host.lastChild.remove();
  while (host.children.length < rows.length) {
    const track = make("div", { class: "track" }, make("div", { class: "fill" }));
    host.append(make("div", { class: "meter" }, make("span", { class: "name" }), track, make("span", { class: "amount" }), make("span", { class: "detail" })));
  }
  rows.forEach(([name, share, detail, limits], index) => {
    const row = host.children[index];
    row.dataset.limits = limits ? "yes" : "no";
    say(row.children[0], name);
    row.children[1].firstChild.style.width = `${100 * Math.min(1, share ?? 0)}%`;
    say(row.children[2], percent(share, 0));
    row.children[3].hidden = !detail;
    say(row.children[3], detail ?? "");
  });
}
