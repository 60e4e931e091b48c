// Light, dark, or the system's theme. The browser stores the choice.

import { byId, say } from "./format.js";

const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = localStorage.getItem("sojourn-theme") ?? "system";

function applyTheme() {
  const name = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
  document.documentElement.dataset.theme = name;
  say(byId("theme"), `Theme: ${theme}`);
}

dark.addEventListener("change", applyTheme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("sojourn-theme", theme);
  applyTheme();
});
applyTheme();
