// The newest events as lines, searched and by level; new ones come by themselves.

import { get } from "../source.js";
import { clock, element } from "../words.js";

const id = (name) => document.getElementById(name);
const KEPT = 500;
const SHOWN = 150;
const LEVELS = ["debug", "info", "warning", "error"];
let records = [];

export async function askEvents() {
  records = await get("v1/events/recent?limit=300");
}

export function addEvent(record) {
  records.push(record);
  if (records.length > KEPT) records = records.slice(-KEPT);
}

export function startEvents(changed) {
  id("events-level").onchange = changed;
  id("events-find").oninput = changed;
}

function text(value, nameOf) {
  if (Array.isArray(value)) return value.length > 4 ? `${value.length} sites` : value.map((one) => text(one, nameOf)).join(", ");
  if (typeof value === "number") return String(Number(value.toPrecision(5)));
  if (typeof value !== "string") return JSON.stringify(value);
  return /^[0-9a-f]{32,}$/.test(value) ? value.slice(0, 10) : nameOf(value);
}

function fields(record, nameOf) {
  return Object.entries(record).filter(([name, value]) => !["time", "event", "level"].includes(name) && value !== "" && !(Array.isArray(value) && !value.length))
    .map(([name, value]) => `${name} ${text(value, nameOf)}`).join(", ");
}

export function showEvents({ nameOf }) {
  const least = LEVELS.indexOf(id("events-level").value);
  const wanted = id("events-find").value.trim().toLowerCase();
  const lines = [];
  for (let index = records.length - 1; index >= 0 && lines.length < SHOWN; index -= 1) {
    const record = records[index];
    if (LEVELS.indexOf(record.level) < least) continue;
    const said = fields(record, nameOf);
    if (wanted && !`${record.event} ${said}`.toLowerCase().includes(wanted)) continue;
    const line = element("p", "", { "data-level": record.level });
    line.append(element("time", clock(record.time)), element("strong", record.event), element("span", said));
    lines.push(line);
  }
  id("events").replaceChildren(...(lines.length ? lines : [element("p", "None.")]));
}
