// Alerts that stand, with what to do, and those that stood before.

import { clock, element, seconds, table } from "../words.js";

const id = (name) => document.getElementById(name);
const KINDS = { info: "idle", warning: "warn", critical: "bad" };

function box(alert) {
  const made = element("div", "", { class: "alert", "data-kind": KINDS[alert.severity] ?? "warn" });
  made.append(element("strong", `${alert.severity}: ${alert.text}`));
  made.append(element("p", `What to do: ${alert.remedy}`), element("p", `Since ${clock(alert.since)}; see "${alert.code}" in the runbook.`));
  return made;
}

export function showAlerts({ status, pastAlerts }) {
  const said = JSON.stringify(status.alerts);
  if (id("alerts").dataset.said !== said) { // said once, not at every drawing
    id("alerts").dataset.said = said;
    id("alerts").replaceChildren(...(status.alerts.length ? status.alerts.map(box) : [element("p", "None stands.", { class: "fine" })]));
  }
  id("past-alerts-box").hidden = pastAlerts.length === 0;
  id("past-alerts").replaceChildren(table(`${pastAlerts.length} alerts, newest first`, [
    ["since", (a) => clock(a.since), ""],
    ["for", (a) => (a.cleared_at === null ? "until the daemon ended" : seconds(a.cleared_at - a.since)), "number"],
    ["severity", (a) => a.severity, "more"],
    ["alert", (a) => a.text, "wrap"],
  ], [...pastAlerts].reverse()));
}
