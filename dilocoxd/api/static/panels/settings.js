// The configuration as it took effect, and the snapshots on this site's disk; asked for when it is opened.

import { get } from "../source.js";
import { bytes, element, hash, table } from "../words.js";

const id = (name) => document.getElementById(name);

/** [section.field, value] of a nested table. */
function flat(values, prefix = "") {
  return Object.entries(values).flatMap(([name, value]) => (
    value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${prefix}${name}.`) : [[`${prefix}${name}`, value]]
  ));
}

const shown = (value) => (typeof value === "string" ? value || '""' : JSON.stringify(value));

function part(title, values) {
  const made = element("div");
  const grid = element("dl", "", { class: "settings" });
  for (const [name, value] of flat(values)) grid.append(element("dt", name, { class: "mono" }), element("dd", shown(value), { class: "mono" }));
  made.append(element("h3", title), grid);
  return made;
}

export function startSettings() {
  id("config-box").ontoggle = async () => {
    if (!id("config-box").open) return;
    const [config, snapshots] = await Promise.all([get("v1/config"), get("v1/snapshots")]);
    const disk = table(`${snapshots.length} snapshots on this site's disk`, [
      ["state", (one) => one.round.toLocaleString("en"), "number"], ["size", (one) => bytes(one.total_bytes), "number"], ["anchor", (one) => hash(one.anchor_sha256), "mono"],
    ], snapshots);
    const where = element("p", `Run directory: ${config.run_directory}`, { class: "hint" });
    const warnings = config.warnings.map((text) => element("p", text, { class: "alert", "data-kind": "warn" }));
    id("config").replaceChildren(where, ...warnings, part("The run (run.toml)", config.run), part("This site (site.toml)", config.site), disk);
  };
}
