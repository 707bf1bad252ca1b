// Values in words and numbers for people; tables and lists as elements. No text from the daemon ever becomes HTML.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 1) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} days`;
}

export const count = (value) => (value === null || value === undefined ? "-" : Math.round(value).toLocaleString("en"));
export const loss = (value) => (value === null || value === undefined ? "-" : value.toFixed(value < 10 ? 3 : 1));
export const short = (text) => (text.length > 8 ? `~${text.slice(-6)}` : text || "-");
export const hash = (text) => (text ? text.slice(0, 10) : "-");
export const clock = (unix) => (unix ? new Date(unix * 1000).toLocaleTimeString() : "-");
export const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)}%` : "-");

/** An element with text, classes and attributes. */
export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A table. `columns`: [title, cell of a row, "number" | "mono" | ""]. */
export function table(caption, columns, rows, ofRow = () => ({})) {
  const made = element("table");
  made.append(element("caption", caption));
  const head = made.createTHead().insertRow();
  for (const [title, , kind] of columns) head.append(element("th", title, { scope: "col", class: kind === "number" ? "number" : "" }));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const [name, value] of Object.entries(ofRow(row))) line.setAttribute(name, value);
    for (const [, cell, kind] of columns) line.append(element("td", String(cell(row)), { class: kind || "" }));
  }
  return made;
}

/** Pairs of a name and a value. */
export function facts(pairs) {
  return pairs.map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  });
}
