// Values in words and numbers for people; tables and lists as elements. No text from the daemon ever becomes HTML.

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"]; // decimal, as everywhere (dilocoxd/answers/words.py)
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const isUnknown = (value) => value === null || value === undefined;
const two = (value) => String(value).padStart(2, "0");

/** Three figures at most, no zeros behind the point: 1, 1.5, 15, 150. */
const figures = (value) => String(Number(value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)));

export function bytes(count) {
  if (isUnknown(count)) return "-";
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < SIZES.length - 1) { value /= 1000; unit += 1; }
  return `${unit === 0 ? value.toFixed(0) : figures(value)} ${SIZES[unit]}`;
}

export function seconds(value) {
  if (isUnknown(value)) return "-";
  if (value === 0) return "0 s";
  if (value < 1) return `${Number((1000 * value).toFixed(0))} ms`;
  if (value < 120) return `${figures(value)} s`;
  if (value < 7200) return `${figures(value / 60)} min`;
  return value < 172800 ? `${figures(value / 3600)} h` : `${figures(value / 86400)} days`;
}

/** A long time in two units, for what is still to come: 2 h 10 min. */
export function span(value) {
  if (isUnknown(value)) return "-";
  const minutes = Math.round(value / 60);
  if (minutes < 2) return `${Math.round(value)} s`;
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours < 10) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  if (hours < 48) return `${hours} h`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

export function count(value) {
  if (isUnknown(value)) return "-";
  for (const [size, name] of [[1e12, "tn"], [1e9, "bn"], [1e6, "M"]]) if (value >= size) return `${figures(value / size)} ${name}`;
  return value >= 1e4 ? `${figures(value / 1e3)} k` : Math.round(value).toLocaleString("en");
}

/** A rate like 12.3 TFLOP/s. */
export function rate(value, unit) {
  if (isUnknown(value)) return "-";
  let size = 0;
  const names = ["", "k", "M", "G", "T", "P", "E"];
  while (value >= 1000 && size < names.length - 1) { value /= 1000; size += 1; }
  return `${figures(value)} ${names[size]}${unit}`;
}

export const tokensPerSecond = (value) => (isUnknown(value) ? "-" : `${Math.round(value).toLocaleString("en")} tok/s`);
export const loss = (value) => (isUnknown(value) ? "-" : value.toFixed(value < 10 ? 3 : 1));
export const small = (value) => (isUnknown(value) ? "-" : value === 0 ? "0" : Math.abs(value) < 1e-4 || value >= 1e5 ? value.toExponential(2) : String(Number(value.toPrecision(3))));
export const hash = (text) => (text ? text.slice(0, 10) : "-");
export const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "-");

/** The one clock of the page: 14:06:46 today, else 22 Nov 14:06. */
export function clock(unix) {
  if (!unix) return "-";
  const at = new Date(unix * 1000);
  const isToday = at.toDateString() === new Date().toDateString();
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return isToday ? `${time}:${two(at.getSeconds())}` : `${day(unix)} ${time}`;
}

export function timeOfDay(unix, withSeconds) {
  const at = new Date(unix * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

export function day(unix) {
  const at = new Date(unix * 1000);
  return `${at.getDate()} ${MONTHS[at.getMonth()]}`;
}

const STATES = {
  training: "trains", catching_up: "catches up", joining: "joins", paused: "is paused", halted: "is halted", preparing: "prepares",
  starting: "starts", leaving: "leaves", left: "left", dead: "is dead", failed: "has failed",
};
const STATES_OF_MANY = {
  training: "train", catching_up: "catch up", joining: "join", paused: "are paused", halted: "are halted", preparing: "prepare",
  starting: "start", leaving: "leave", left: "left", dead: "are dead", failed: "have failed",
};
export const stateOf = (state) => STATES[state] ?? state.replaceAll("_", " ");
export const stateOfMany = (state, number) => `${number} ${(number === 1 ? STATES : STATES_OF_MANY)[state] ?? state.replaceAll("_", " ")}`;

/** An element with text, classes and attributes. */
export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A table. `columns`: [title, cell of a row (text or element), classes]; class "more" leaves on narrow screens. */
export function table(caption, columns, rows, ofRow = () => ({})) {
  const made = element("table");
  made.append(element("caption", caption));
  const head = made.createTHead().insertRow();
  for (const [title, , kind] of columns) head.append(element("th", title, { scope: "col", class: (kind || "").replace("mono", "") }));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const [name, value] of Object.entries(ofRow(row))) line.setAttribute(name, value);
    for (const [, cell, kind] of columns) {
      const value = cell(row);
      const made = element("td", value instanceof Element ? "" : String(value), { class: kind || "" });
      if (value instanceof Element) made.append(value);
      line.append(made);
    }
  }
  return made;
}

/** Pairs of a name and a value, with a remark below. */
export function facts(pairs) {
  return pairs.map(([name, value, remark]) => {
    const pair = element("div");
    const shown = element("dd", value);
    if (remark) shown.append(element("small", remark));
    pair.append(element("dt", name), shown);
    return pair;
  });
}

/** Replace the text only if it changed: live regions are read aloud at every change. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
