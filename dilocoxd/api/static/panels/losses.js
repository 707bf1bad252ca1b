// Loss of the shared model and of the inner steps here, over time.

import { Curves, smoothed } from "../charts.js";
import { clock, loss, table } from "../words.js";

const id = (name) => document.getElementById(name);
const FEW_POINTS = 60;
const chart = new Curves(id("loss-chart"), { isTime: true, unit: "loss", height: 320 });

export function startLosses(changed) {
  id("loss-smooth").onchange = changed;
  id("loss-log").onchange = () => { chart.isLog = id("loss-log").checked; changed(); };
  id("loss-whole").onclick = () => chart.whole();
  chart.onZoom = (isZoomed) => { id("loss-whole").hidden = !isZoomed; };
}

export function showLosses({ losses }) {
  const weight = Number(id("loss-smooth").value);
  const byTime = new Map();
  losses.inner.forEach(([time, , value]) => byTime.set(time, [value, null]));
  losses.validation.forEach(([time, , value]) => byTime.set(time, [byTime.get(time)?.[0] ?? null, value]));
  const xs = [...byTime.keys()].sort((a, b) => a - b);
  id("loss-none").hidden = xs.length > 0;
  id("loss-chart").hidden = xs.length === 0;
  if (!xs.length) return;
  const inner = xs.map((x) => byTime.get(x)[0]);
  const series = [
    { label: "shared model", colour: "--two", values: xs.map((x) => byTime.get(x)[1]), width: 2.6, points: losses.validation.length < FEW_POINTS },
    { label: "inner, this site", colour: "--one", values: smoothed(inner, weight), width: weight ? 1.6 : 1 },
  ];
  if (weight) series.unshift({ label: "inner, as measured", colour: "--one", values: inner, width: 1, alpha: 0.22 });
  chart.show(xs, series);
  const newest = losses.validation[losses.validation.length - 1];
  const here = losses.inner[losses.inner.length - 1];
  id("loss-chart").setAttribute("aria-label", `Loss: inner ${loss(here?.[2])}, shared model ${loss(newest?.[2])}${newest ? ` after round ${newest[1]}` : ""}`);
  id("loss-table").replaceChildren(table("Shared model, newest rounds", [
    ["round", (point) => point[1], "number"], ["time", (point) => clock(point[0]), ""], ["validation loss", (point) => loss(point[2]), "number"],
  ], losses.validation.slice(-20).reverse()));
  if (!performance.getEntriesByName("losses shown").length) performance.mark("losses shown");
}
