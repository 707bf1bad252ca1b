// Charts over the rounds, from columns: speed, sites, bytes, times, H and r. The round under way has no figures yet.

import { Curves } from "../charts.js";
import { bytes, count, say, seconds } from "../words.js";

const id = (name) => document.getElementById(name);
const POINTS_MAX = 3000; // more than pixels only cost time
const charts = {
  speed: new Curves(id("speed-chart"), { unit: "count" }),
  turnout: new Curves(id("turnout-chart"), { unit: "count" }),
  bytes: new Curves(id("bytes-chart"), { unit: "bytes" }),
  times: new Curves(id("times-chart"), { unit: "seconds" }),
  schedule: new Curves(id("schedule-chart"), { unit: "count" }),
};

export function startFigures(changed) {
  id("figures-range").onchange = changed;
  id("figures-log").onchange = () => {
    for (const name of ["speed", "bytes", "times"]) charts[name].isLog = id("figures-log").checked;
    changed();
  };
  id("figures-whole").onclick = () => Object.values(charts).forEach((chart) => chart.whole());
  Object.values(charts).forEach((chart) => {
    chart.onZoom = () => { id("figures-whole").hidden = !Object.values(charts).some((one) => one.isZoomed); };
  });
}

/** Indices of what is drawn: the chosen stretch, evenly thinned. */
function chosen(columns) {
  const range = Number(id("figures-range").value);
  const first = range ? Math.max(0, columns.round.length - range) : 0;
  const size = columns.round.length - first;
  if (size <= POINTS_MAX) return Array.from({ length: size }, (_, index) => first + index);
  return Array.from({ length: POINTS_MAX }, (_, index) => first + Math.floor((index * (size - 1)) / (POINTS_MAX - 1)));
}

/** Tokens of each round over the time since the round before; unknown where that time is not. */
function speeds({ committed_at: at, tokens }) {
  return at.map((time, index) => (index > 0 && time > at[index - 1] ? tokens[index] / (time - at[index - 1]) : null));
}

const onLog = (values, isLog) => (isLog ? values.map((value) => (value > 0 ? value : null)) : values);

function draw(chart, xs, series) {
  chart.show(xs, series.map((one) => ({ ...one, values: onLog(one.values, chart.isLog), spanGaps: false })));
}

export function showFigures({ columns, status }) {
  if (!columns.committed_at) return;
  const indices = chosen(columns);
  const pick = (values) => indices.map((index) => values[index]);
  const xs = pick(columns.round);
  const speed = speeds(columns);
  draw(charts.speed, xs, [{ label: "tokens/s", colour: "--one", values: pick(speed) }]);
  draw(charts.turnout, xs, [{ label: "sites", colour: "--one", values: pick(columns.contributors), width: 2 }]);
  draw(charts.bytes, xs, [
    { label: "sent", colour: "--one", values: pick(columns.bytes_sent) },
    { label: "received", colour: "--two", values: pick(columns.bytes_received) },
  ]);
  draw(charts.times, xs, [
    { label: "exchange", colour: "--one", values: pick(columns.exchange_s) },
    { label: "trainers idle", colour: "--two", values: pick(columns.trainer_idle_s) },
  ]);
  const hasRank = columns.next_lowrank_r.some((value) => value > 0);
  say(id("lowrank-h"), hasRank ? " and low rank r" : "");
  draw(charts.schedule, xs, [
    { label: "H", colour: "--one", values: pick(columns.next_inner_steps), width: 2 },
    ...(hasRank ? [{ label: "r", colour: "--two", values: pick(columns.next_lowrank_r), width: 2 }] : []),
  ]);
  tell(columns, xs, speed, hasRank);
  const { payload } = status;
  say(id("bytes-hint"), payload ? `One contribution is ${bytes(payload.payload_bytes)} instead of ${bytes(payload.fp32_bytes)} in fp32: ${payload.compression_ratio.toFixed(1)} times smaller.` : "");
}

function tell(columns, xs, speed, hasRank) {
  if (!xs.length) return;
  const last = columns.round.length - 1;
  const range = `rounds ${xs[0]} to ${xs[xs.length - 1]}`;
  const texts = {
    speed: `Tokens per second of ${range}; newest: ${count(speed[last])}`,
    turnout: `Sites in ${range}; newest: ${columns.contributors[last]}`,
    bytes: `Bytes of ${range}; newest: ${bytes(columns.bytes_sent[last])} sent, ${bytes(columns.bytes_received[last])} received`,
    times: `Times of ${range}; newest exchange: ${seconds(columns.exchange_s[last])}, idle ${seconds(columns.trainer_idle_s[last])}`,
    schedule: `H${hasRank ? " and r" : ""} of ${range}; newest: ${hasRank ? `r ${columns.next_lowrank_r[last]}, ` : ""}H ${columns.next_inner_steps[last]}`,
  };
  for (const [name, text] of Object.entries(texts)) id(`${name}-chart`).setAttribute("aria-label", text);
}
