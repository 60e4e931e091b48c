// Formatted numbers and elements. Text is set as text, so no data becomes markup.

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 4 });
}

export function percent(share, digits = 2) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const value = 100 * share;
  // 99.996% is not 100%.
  const shown = digits && value < 100 ? Math.min(value, 100 - 10 ** -digits) : value;
  return `${Number(shown.toFixed(digits))}%`;
}

export const bytes = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = value > 0 ? Math.min(units.length - 1, Math.floor(Math.log10(value) / 3)) : 0;
  return `${number(value / 1000 ** step)} ${units[step]}`;
};

export function duration(seconds) {
  const [unit, length] = [["days", 86400], ["h", 3600], ["min", 60]].find(([, one]) => seconds >= 2 * one) ?? ["s", 1];
  return `${Math.floor(seconds / length)} ${unit}`;
}

export const clock = (timeS) =>
  new Date(1000 * timeS).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

// Screen readers read changes aloud, so set only changed text.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
