// Loss of the shared model, of the inner steps here, and of other sites as they tell it, over time.

import { Curves, smoothed } from "../charts.js";
import { clock, element, loss, table } from "../words.js";

const id = (name) => document.getElementById(name);
const FEW_POINTS = 60;
const TONES = ["--site-1", "--site-2", "--site-3", "--site-4", "--site-5", "--site-6"];
const BANDS = 240; // of time, in which sites are compared: their older points are means of different neighbours
const chart = new Curves(id("loss-chart"), { isTime: true, unit: "loss", height: 320 });
let chosen = ""; // by whoever looks; until then few sites are lines of their own, and many are summed up

export function startLosses(changed) {
  id("loss-smooth").onchange = changed;
  id("loss-sites").onchange = () => { chosen = id("loss-sites").value; changed(); };
  id("loss-log").onchange = () => { chart.isLog = id("loss-log").checked; changed(); };
  id("loss-whole").onclick = () => chart.whole();
  chart.onZoom = (isZoomed) => { id("loss-whole").hidden = !isZoomed; };
}

const byName = (sites) => [...sites].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));

/** What can be shown of the others, and what is: none, each, range, or the peer id of one. */
function choice(sites) {
  const menu = id("loss-sites");
  const options = [["none", "not shown"]];
  if (sites.length && sites.length <= TONES.length) options.push(["each", sites.length === 1 ? "shown" : "each"]);
  if (sites.length > 1) options.push(["range", "lowest, middle, highest"]);
  if (sites.length > 1) sites.forEach((site) => options.push([site.peer_id, `only ${site.name}`]));
  const key = options.flat().join("\n");
  if (menu.dataset.key !== key) {
    menu.dataset.key = key;
    menu.replaceChildren(...options.map(([value, text]) => element("option", text, { value })));
  }
  const usual = sites.length === 0 ? "none" : sites.length <= TONES.length ? "each" : "range";
  menu.value = options.some(([value]) => value === chosen) ? chosen : usual;
  menu.disabled = sites.length === 0;
  return menu.value;
}

/** Lowest, middle and highest of the sites in each band of time: [[time, low, middle, high]]. */
function ranges(sites) {
  const times = sites.flatMap((site) => site.points.map(([time]) => time));
  const first = times.reduce((low, time) => Math.min(low, time), Infinity);
  const width = (times.reduce((high, time) => Math.max(high, time), -Infinity) - first) / BANDS || 1;
  const bands = new Map();
  for (const { points } of sites) {
    const sums = new Map();
    for (const [time, , value] of points) {
      if (value === null) continue;
      const band = Math.floor((time - first) / width);
      const sum = sums.get(band) ?? [0, 0, time];
      sums.set(band, [sum[0] + value, sum[1] + 1, time]);
    }
    for (const [band, [sum, number, time]] of sums) {
      const found = bands.get(band) ?? { time, values: [] };
      bands.set(band, { time: Math.max(found.time, time), values: [...found.values, sum / number] });
    }
  }
  return [...bands.values()].map(({ time, values }) => {
    values.sort((a, b) => a - b);
    return [time, values[0], values[Math.floor(values.length / 2)], values[values.length - 1]];
  });
}

/** Lines of the others: {label, colour, width, alpha, at: time -> loss}. */
function lines(sites, shown) {
  if (shown === "none") return [];
  if (shown === "range") {
    const found = ranges(sites);
    const line = (label, column, more) => ({ label, colour: "--site-1", width: 1, at: new Map(found.map((row) => [row[0], row[column]])), ...more });
    const many = `of ${sites.length} other sites`;
    return [line(`highest ${many}`, 3, { alpha: 0.5 }), line(`middle ${many}`, 2, { width: 2 }), line(`lowest ${many}`, 1, { alpha: 0.5 })];
  }
  return sites.map((site, index) => ({ site, colour: TONES[index % TONES.length] }))
    .filter(({ site }) => shown === "each" || site.peer_id === shown)
    .map(({ site, colour }) => ({ label: `inner, ${site.name}`, colour, width: 1.4, at: new Map(site.points.map(([time, , value]) => [time, value])), points: site.points.length < FEW_POINTS }));
}

export function showLosses({ losses }) {
  const weight = Number(id("loss-smooth").value);
  const sites = byName(losses.sites);
  const others = lines(sites, choice(sites));
  const inner = new Map(losses.inner.map(([time, , value]) => [time, value]));
  const shared = new Map(losses.validation.map(([time, , value]) => [time, value]));
  const xs = [...new Set([inner, shared, ...others.map((one) => one.at)].flatMap((known) => [...known.keys()]))].sort((a, b) => a - b);
  id("loss-none").hidden = xs.length > 0;
  id("loss-chart").hidden = xs.length === 0;
  if (!xs.length) return;
  const along = (known) => xs.map((x) => known.get(x) ?? null);
  const here = along(inner);
  const series = [
    ...others.map(({ at, ...one }) => ({ ...one, values: along(at) })),
    { label: "shared model", colour: "--two", values: along(shared), width: 2.6, points: losses.validation.length < FEW_POINTS },
    { label: "inner, this site", colour: "--one", values: smoothed(here, weight), width: weight ? 1.6 : 1 },
  ];
  if (weight) series.unshift({ label: "inner, as measured", colour: "--one", values: here, width: 1, alpha: 0.22 });
  chart.show(xs, series);
  tell(losses, sites);
  if (!performance.getEntriesByName("losses shown").length) performance.mark("losses shown");
}

/** The same in words and as tables. */
function tell({ inner, validation }, sites) {
  const newest = validation[validation.length - 1];
  const here = inner[inner.length - 1];
  const last = sites.map((site) => site.points[site.points.length - 1][2]).filter((value) => value !== null);
  const told = last.length ? `, ${last.length} other ${last.length === 1 ? "site" : "sites"} ${loss(Math.min(...last))} to ${loss(Math.max(...last))}` : "";
  id("loss-chart").setAttribute("aria-label", `Loss: inner ${loss(here?.[2])}, shared model ${loss(newest?.[2])}${newest ? ` after round ${newest[1]}` : ""}${told}`);
  id("loss-table").replaceChildren(
    table("Shared model, newest rounds", [
      ["round", (point) => point[1], "number"], ["time", (point) => clock(point[0]), ""], ["validation loss", (point) => loss(point[2]), "number"],
    ], validation.slice(-20).reverse()),
    table("Other sites, newest phase in a round", [
      ["site", (site) => site.name, "name"], ["round", (site) => site.points[site.points.length - 1][1], "number"],
      ["inner loss", (site) => loss(site.points[site.points.length - 1][2]), "number"],
    ], sites),
  );
}
