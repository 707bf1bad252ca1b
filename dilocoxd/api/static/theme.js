// Colours: as the system, light or dark; the choice is kept in this browser.

const KEY = "dilocoxd-theme";
const THEMES = ["system", "light", "dark"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
const chosen = () => localStorage.getItem(KEY) ?? "system";

function apply(changed) {
  document.documentElement.dataset.theme = chosen() === "system" ? (systemDark.matches ? "dark" : "light") : chosen();
  button.textContent = `Colours: ${chosen()}`;
  button.setAttribute("aria-label", `Colours: ${chosen()}; press for the next choice`);
  changed();
}

export function startTheme(changed) {
  button.onclick = () => {
    localStorage.setItem(KEY, THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length]);
    apply(changed);
  };
  systemDark.addEventListener("change", () => apply(changed));
  apply(changed);
}
