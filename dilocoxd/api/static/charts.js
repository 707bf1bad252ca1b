// Curves on uPlot: zoom that stays when data comes, logarithmic or linear y, round numbers at the axes.

import { UNITS, roundAxis, timeAxis, valueAxis, valueRange } from "./axes.js";
import uPlot from "./vendor/uPlot.esm.js";
import { clock } from "./words.js";

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function axisStyle(more) {
  return { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1, size: 4 }, font: "12px system-ui, sans-serif", ...more };
}

/** One chart in one element: made anew when its columns or colours change, else only given new data. */
export class Chart {
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

  /** `isFree`: nobody has zoomed, so the axes follow the data. */
  draw(key, options, data, isFree = true) {
    if (this.plot && this.key === key) {
      this.plot.setData(data, isFree);
      if (!isFree) this.plot.redraw();
      return;
    }
    if (this.plot) this.plot.destroy();
    this.key = key;
    const size = { width: Math.max(this.element.clientWidth, 100), height: this.height };
    this.plot = new uPlot({ ...size, ...options }, data, this.element);
  }
}

/** Exponential mean of the known values; `weight` of what was before, 0 leaves them as they are. */
export function smoothed(values, weight) {
  if (weight === 0) return values;
  let mean = null;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

/** Curves over one x axis. `series`: [{label, colour, values, points, width, unit}]; values may hold null. */
export class Curves extends Chart {
  constructor(element, { isTime = false, unit = "count", height = 230 } = {}) {
    super(element, height);
    this.isTime = isTime;
    this.isLog = false;
    this.unit = unit;
    this.isZoomed = false;
    this.onZoom = () => {};
  }

  whole() {
    this.isZoomed = false;
    if (this.plot) this.plot.setData(this.plot.data);
    this.onZoom(false);
  }

  show(xs, series) {
    const newest = series.map((one) => one.values.findLast((value) => value !== null && value !== undefined));
    const text = UNITS[this.unit].text;
    const shown = series.map((one, index) => ({
      label: one.label, stroke: colour(one.colour), width: one.width ?? 1.5, alpha: one.alpha ?? 1,
      value: (plot, raw, number, at) => text(at === null || at === undefined ? newest[index] : raw),
      points: { show: one.points ?? false, size: 5, fill: colour(one.colour) }, spanGaps: one.spanGaps ?? true,
    }));
    const where = (plot, raw) => (raw === null || raw === undefined ? "newest" : this.isTime ? clock(raw) : raw.toLocaleString("en"));
    const options = {
      scales: { x: { time: false }, y: this.isLog ? { distr: 3 } : { range: valueRange(this.unit) } },
      axes: [axisStyle(this.isTime ? timeAxis : roundAxis), axisStyle(this.isLog ? { ...valueAxis(this.unit), incrs: undefined } : valueAxis(this.unit))],
      series: [{ label: this.isTime ? "time" : "round", value: where }, ...shown],
      cursor: { drag: { x: true, y: false }, bind: { dblclick: () => () => { this.whole(); return null; } } },
      hooks: { setSelect: [(plot) => { if (plot.select.width > 0) { this.isZoomed = true; this.onZoom(true); } }] },
    };
    const theme = document.documentElement.dataset.theme;
    const key = `${theme} ${this.isLog} ${series.map((one) => one.label)}`;
    if (this.key !== key && this.isZoomed) { this.isZoomed = false; this.onZoom(false); }
    if (this.plot) this.plot.series.slice(1).forEach((one, index) => { one.value = shown[index]?.value; });
    this.draw(key, options, [xs, ...series.map((one) => one.values)], !this.isZoomed);
  }
}
