// Charts on uPlot: curves with logarithmic or linear y, and the timeline of sites as rectangles on a uPlot canvas.

import uPlot from "./vendor/uPlot.esm.js";

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(more) {
  return { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: "12px system-ui", ...more };
}

/** One chart in one element: made anew when its columns or colours change, else only given new data. */
class Chart {
  constructor(element, height) {
    this.element = element;
    this.height = height;
    this.plot = null;
    this.key = "";
    new ResizeObserver(() => this.fit()).observe(element);
  }

  fit() {
    const width = this.element.clientWidth;
    if (this.plot && width > 0 && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
  }

  draw(key, options, data) {
    if (this.plot && this.key === key) { this.plot.setData(data); return; }
    if (this.plot) this.plot.destroy();
    this.key = key;
    const size = { width: Math.max(this.element.clientWidth, 100), height: this.height };
    this.plot = new uPlot({ ...size, ...options }, data, this.element);
  }
}

/** Curves over one x axis. `series`: [{label, colour, values, points, width}]; values may hold null. */
export class Curves extends Chart {
  constructor(element, { isTime = false, isLog = false, unit = (value) => value, xLabel = "round" } = {}) {
    super(element, 240);
    this.isTime = isTime;
    this.isLog = isLog;
    this.unit = unit;
    this.xLabel = xLabel;
  }

  show(xs, series) {
    const value = (plot, raw) => (raw === null || raw === undefined ? "-" : this.unit(raw));
    const shown = series.map((one) => ({
      label: one.label, stroke: colour(one.colour), width: one.width ?? 1.5, value, scale: one.scale ?? "y",
      points: { show: one.points ?? false, size: 6, fill: colour(one.colour) }, spanGaps: true,
    }));
    const scales = { x: { time: this.isTime }, y: { distr: this.isLog ? 3 : 1 } };
    const axes = [axis({}), axis({ size: 70, values: (plot, splits) => splits.map((raw) => (raw === null ? "" : this.unit(raw))) })];
    if (series.some((one) => one.scale === "right")) axes.push(axis({ side: 1, scale: "right", size: 60, grid: { show: false } }));
    const options = { scales, axes, series: [{ label: this.isTime ? "time" : this.xLabel }, ...shown], cursor: { drag: { x: true, y: false } }, legend: { live: true } };
    const theme = document.documentElement.dataset.theme;
    this.draw(`${theme} ${series.map((one) => one.label)}`, options, [xs, ...series.map((one) => one.values)]);
  }
}

const ROW = 30;
const PATTERNED = new Set(["idle", "silent"]);

/** Rows of coloured stretches of time, one row for each site. */
export class Timeline extends Chart {
  constructor(element) {
    super(element, 80);
    this.sites = [];
  }

  show(start, end, sites) {
    this.sites = sites;
    this.height = 50 + ROW * Math.max(1, sites.length);
    const names = sites.map((site) => site.name);
    const options = {
      scales: { x: { time: true, range: () => [this.start, this.end] }, y: { range: [0, Math.max(1, sites.length)] } },
      axes: [axis({}), axis({ size: 110, grid: { show: false }, splits: () => names.map((_, row) => names.length - row - 0.5), values: () => names })],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      legend: { show: false },
      cursor: { show: false },
      hooks: { draw: [(plot) => this.paint(plot)] },
    };
    this.start = start;
    this.end = end;
    const theme = document.documentElement.dataset.theme;
    this.draw(`${theme} ${names}`, options, [[start, end], [null, null]]);
  }

  paint(plot) {
    const { ctx } = plot;
    const left = plot.bbox.left;
    const right = left + plot.bbox.width;
    const ratio = devicePixelRatio;
    ctx.save();
    this.sites.forEach((site, row) => {
      const middle = plot.valToPos(this.sites.length - row - 0.5, "y", true);
      for (const span of site.spans) {
        const from = Math.max(left, plot.valToPos(span.start, "x", true));
        const to = Math.min(right, plot.valToPos(span.end, "x", true));
        if (to <= left || from >= right) continue;
        const isThin = span.kind === "exchange" || span.kind === "apply";
        ctx.fillStyle = fill(ctx, span.kind);
        const top = middle + (isThin ? 1 : -9) * ratio; // what runs beside the training lies over its lower half
        ctx.fillRect(from, top, Math.max(1, to - from), (isThin ? 8 : 18) * ratio);
      }
    });
    ctx.restore();
  }
}

function fill(ctx, kind) {
  const known = ["compute", "exchange", "apply", "idle", "training", "silent"];
  const tone = colour(`--span-${known.includes(kind) ? kind : "other"}`);
  if (!PATTERNED.has(kind)) return tone;
  const tile = document.createElement("canvas");
  tile.width = 6;
  tile.height = 6;
  const brush = tile.getContext("2d");
  brush.strokeStyle = tone;
  brush.lineWidth = 3;
  brush.beginPath();
  brush.moveTo(0, 6);
  brush.lineTo(6, 0);
  brush.stroke();
  return ctx.createPattern(tile, "repeat");
}
