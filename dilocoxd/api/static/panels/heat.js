// Who took part in the newest rounds: one row for each site, one cell for each round, darker for more tokens.

import { colour } from "../charts.js";
import { say } from "../words.js";
import { chosenSites } from "./sites.js";

const id = (name) => document.getElementById(name);
const LABEL = 150;
const FOOT = 18;
let canvas = null;
let again = null;

function cut(brush, text, width) {
  if (brush.measureText(text).width <= width) return text;
  let kept = text;
  while (kept && brush.measureText(`${kept}...`).width > width) kept = kept.slice(0, -1);
  return `${kept}...`;
}

export function showHeat(model) {
  const { rounds, sites } = model.participation;
  const shares = new Map(sites.map((site) => [site.peer_id, site.tokens]));
  const rows = chosenSites(model).map((row) => ({ name: row.name, tokens: shares.get(row.peer_id) ?? rounds.map(() => 0) }));
  again = () => draw(rounds, rows);
  again();
  const last = rounds.length - 1;
  const missing = rows.filter((row) => !row.tokens[last]).map((row) => row.name);
  const text = rounds.length === 0 ? "No round yet." : `Rounds ${rounds[0].toLocaleString("en")} to ${rounds[last].toLocaleString("en")}, newest at the right; an empty cell: not in that round, darker: more tokens.`;
  say(id("heat-hint"), text);
  id("heat").setAttribute("aria-label", `${text} Not in the newest: ${missing.join(", ") || "nobody"}.`);
}

function draw(rounds, rows) {
  const box = id("heat");
  if (!canvas) {
    canvas = document.createElement("canvas");
    box.append(canvas);
    new ResizeObserver(() => again?.()).observe(box);
  }
  const width = box.clientWidth;
  const label = Math.min(LABEL, Math.round(width * 0.3));
  const height = rows.length > 20 ? 13 : 18;
  const shown = Math.min(rounds.length, Math.max(10, Math.floor((width - label) / 9)));
  const step = shown ? Math.min(24, (width - label) / shown) : 0;
  const ratio = devicePixelRatio;
  const tall = rows.length * height + FOOT;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${tall}px`;
  }
  const brush = canvas.getContext("2d");
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, width, tall);
  brush.font = `${height > 15 ? 12 : 11}px system-ui, sans-serif`;
  brush.textBaseline = "middle";
  const first = rounds.length - shown;
  const most = Math.max(1, ...rows.flatMap((row) => row.tokens.slice(first)));
  const [text, full, empty] = [colour("--soft"), colour("--span-compute"), colour("--grid")];
  rows.forEach((row, y) => {
    brush.fillStyle = text;
    brush.fillText(cut(brush, row.name, label - 10), 0, (y + 0.5) * height);
    for (let x = 0; x < shown; x += 1) {
      const tokens = row.tokens[first + x];
      brush.globalAlpha = tokens ? 0.35 + 0.65 * (tokens / most) : 1;
      brush.fillStyle = tokens ? full : empty;
      if (tokens) brush.fillRect(label + x * step, y * height + 1, Math.max(1, step - 1), height - 2);
      else brush.fillRect(label + x * step, (y + 0.5) * height - 1, Math.max(1, step - 1), 2);
    }
    brush.globalAlpha = 1;
  });
  if (!shown) return;
  brush.fillStyle = text;
  brush.fillText(rounds[first].toLocaleString("en"), label, rows.length * height + FOOT / 2);
  const end = rounds[rounds.length - 1].toLocaleString("en");
  brush.fillText(end, Math.max(label + 60, label + shown * step - brush.measureText(end).width), rows.length * height + FOOT / 2);
}
