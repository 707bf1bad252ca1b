// What each site did when: rows of coloured stretches of time on a uPlot canvas.

import { timeAxis } from "../axes.js";
import { Chart, axisStyle, colour } from "../charts.js";
import { element, seconds, table } from "../words.js";
import { chosenSites } from "./sites.js";

const id = (name) => document.getElementById(name);
const PATTERNED = new Set(["idle", "silent"]);
const KNOWN = ["compute", "exchange", "apply", "idle", "training", "silent"];
const FOOT = 58;

/** Rows of coloured stretches of time, one row for each site. */
class Timeline extends Chart {
  constructor(box) {
    super(box, 80);
    this.sites = [];
  }

  fit() {
    super.fit();
    if (this.plot) this.label = this.plot.width < 500 ? 96 : 150;
  }

  show(start, end, sites) {
    this.sites = sites;
    this.start = start;
    this.end = end;
    this.row = sites.length > 20 ? 16 : 28;
    this.height = FOOT + this.row * Math.max(1, sites.length);
    const label = this.element.clientWidth < 500 ? 96 : 150;
    const letters = Math.floor(label / 7.2);
    const names = sites.map((site) => (site.name.length > letters ? `${site.name.slice(0, letters - 2)}..` : site.name));
    const options = {
      scales: { x: { time: false, range: () => [this.start, this.end] }, y: { range: [0, Math.max(1, sites.length)] } },
      axes: [axisStyle(timeAxis), axisStyle({ size: label, gap: 6, grid: { show: false }, ticks: { show: false }, splits: () => names.map((_, row) => names.length - row - 0.5), values: () => names })],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      legend: { show: false },
      cursor: { show: false },
      hooks: { draw: [(plot) => this.paint(plot)] },
    };
    this.draw(`${document.documentElement.dataset.theme} ${label} ${names}`, options, [[start, end], [null, null]]);
  }

  paint(plot) {
    const { ctx } = plot;
    const left = plot.bbox.left;
    const right = left + plot.bbox.width;
    const ratio = devicePixelRatio;
    const half = (this.row / 2 - 4) * ratio;
    ctx.save();
    this.sites.forEach((site, row) => {
      const middle = plot.valToPos(this.sites.length - row - 0.5, "y", true);
      for (const span of site.spans) {
        const from = Math.max(left, plot.valToPos(span.start, "x", true));
        const to = Math.min(right, plot.valToPos(span.end, "x", true));
        if (to <= left || from >= right) continue;
        const isThin = span.kind === "exchange" || span.kind === "apply"; // runs beside the training: over its lower half
        ctx.fillStyle = fill(ctx, span.kind);
        ctx.fillRect(from, middle + (isThin ? 1 : -half), Math.max(1, to - from), isThin ? half : 2 * half);
      }
    });
    ctx.restore();
  }
}

function fill(ctx, kind) {
  const tone = colour(`--span-${KNOWN.includes(kind) ? kind : "other"}`);
  if (!PATTERNED.has(kind)) return tone;
  const tile = element("canvas", "", { width: "6", height: "6" });
  const brush = tile.getContext("2d");
  brush.strokeStyle = tone;
  brush.lineWidth = 3;
  brush.beginPath();
  brush.moveTo(0, 6);
  brush.lineTo(6, 0);
  brush.stroke();
  return ctx.createPattern(tile, "repeat");
}

const chart = new Timeline(id("timeline-chart"));

/** Time spent with a kind of span, inside the stretch that is shown. */
const spent = (site, kind, start, end) => site.spans.filter((span) => span.kind === kind)
  .reduce((sum, span) => sum + Math.max(0, Math.min(span.end, end) - Math.max(span.start, start)), 0);

export function showTimeline(model) {
  const { timeline } = model;
  if (!timeline) return;
  const { end } = timeline;
  const start = end - Number(id("span-choice").value);
  const known = new Map(timeline.sites.map((site) => [site.peer_id, site.spans]));
  const sites = chosenSites(model).filter((row) => known.has(row.peer_id)).map((row) => ({
    name: row.isSelf ? "this site" : row.name,
    spans: known.get(row.peer_id).filter((span) => span.kind !== "phase" && span.end > start),
  }));
  chart.show(start, end, sites);
  id("timeline-chart").setAttribute("aria-label", `Timeline: ${sites.map((site) => `${site.name} idle ${seconds(spent(site, "idle", start, end))}, not heard of ${seconds(spent(site, "silent", start, end))}`).join("; ")}`);
  id("timeline-table").replaceChildren(table("Time in the stretch shown", [
    ["site", (site) => site.name, ""],
    ...KNOWN.map((kind) => [kind, (site) => seconds(spent(site, kind, start, end)), "number"]),
  ], sites));
}
