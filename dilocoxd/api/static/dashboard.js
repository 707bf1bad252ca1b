// The page: asks the daemon, listens to its events, and hands what came to the panels. What is shown is only ever what
// was last heard; when the connection is lost, the page says so and since when.

import { showAlerts } from "./panels/alerts.js";
import { askToken, showControls, startControls } from "./panels/controls.js";
import { addEvent, askEvents, showEvents, startEvents } from "./panels/events.js";
import { showFigures, startFigures } from "./panels/figures.js";
import { showHeat } from "./panels/heat.js";
import { showJoin, startJoin } from "./panels/join.js";
import { showLosses, startLosses } from "./panels/losses.js";
import { showNow } from "./panels/now.js";
import { askRounds, showRounds, startRounds } from "./panels/rounds.js";
import { askSample, startSample } from "./panels/sample.js";
import { startSettings } from "./panels/settings.js";
import { showSites, startSites } from "./panels/sites.js";
import { showTimeline } from "./panels/timeline.js";
import { EventStream, NeedsToken, get } from "./source.js";
import { startTheme } from "./theme.js";
import { clock } from "./words.js";

const LOSS_POINTS = 2000;
const HEAT_ROUNDS = 120;
const AGAIN = 20; // newest rounds that are asked for once more: a fork may have changed them
const CALM_MS = 1000; // after an event, wait this long for more of them before asking the daemon
const TICK_MS = 5000;
const AGAIN_MS = 2000; // after the start of a page that not all was answered for
const id = (name) => document.getElementById(name);

const model = {
  status: null,
  peers: [],
  losses: { inner: [], validation: [], sites: [] },
  columns: { round: [] },
  participation: { rounds: [], sites: [] },
  timeline: null,
  pastAlerts: [],
  nameOf: (peer) => names.get(peer) ?? (peer.length > 30 && !peer.includes(" ") ? `~${peer.slice(-6)}` : peer),
};
const names = new Map();
let heardAt = 0;
let turns = 0; // how often the whole page was asked for

// --- asking: what, and which panels show it

const ask = {
  async status() { takeStatus(await get("v1/status")); },
  async peers() {
    const told = (peers) => peers.map((peer) => peer.inner_loss).join();
    const before = told(model.peers);
    model.peers = await get("v1/peers");
    if (before && before !== told(model.peers)) want("losses"); // another site told a loss, some time after its round
    model.peers.forEach((peer) => names.set(peer.peer_id, peer.name));
  },
  async losses() { model.losses = await get(`v1/losses?points=${LOSS_POINTS}`); },
  async columns() {
    const old = model.columns.round;
    const from = old.length > AGAIN ? old[old.length - AGAIN] : 0;
    const added = await get(`v1/columns/rounds?from=${from}`);
    const kept = old.findIndex((round) => round >= from);
    model.columns = Object.fromEntries(Object.entries(added).map(([name, values]) => (
      [name, from > 0 ? model.columns[name].slice(0, kept).concat(values) : values]
    )));
  },
  async participation() { model.participation = await get(`v1/participation?limit=${HEAT_ROUNDS}`); },
  async rounds() { await askRounds(); },
  async timeline() {
    // The daemon's clock, not the browser's: they may differ by hours.
    const now = model.status.started_at + model.status.uptime_s;
    const since = Math.max(0, Math.floor(now - Number(id("span-choice").value)));
    model.timeline = await get(`v1/timeline/sites?since=${since}`);
  },
  async alerts() { model.pastAlerts = await get("v1/alerts/history"); },
  async events() { await askEvents(); },
  async sample() { await askSample(); },
};

const PANELS = {
  status: [showNow, showControls, showJoin, showAlerts, showSites],
  peers: [showSites, showRounds],
  losses: [showLosses, showNow],
  columns: [showFigures],
  participation: [showHeat],
  rounds: [showRounds],
  timeline: [showTimeline],
  alerts: [showAlerts],
  events: [showEvents],
  sample: [],
  sites: [showSites, showHeat, showTimeline],
};

function takeStatus(value) {
  model.status = value;
  names.set(value.peer_id, value.name);
  heardAt = Date.now() / 1000;
}

const wanted = new Set();
let calm = null;

/** Ask for these soon, once, however often this is called. */
function want(...parts) {
  parts.forEach((part) => wanted.add(part));
  calm ??= setTimeout(async () => {
    calm = null;
    const now = [...wanted];
    wanted.clear();
    if (!(await askThese(now))) now.forEach((part) => wanted.add(part)); // with what is wanted next
  }, CALM_MS);
}

/** Ask for all of these beside each other; each is shown as soon as it is there. Whether all were answered. */
async function askThese(parts) {
  try {
    await Promise.all(parts.map(async (part) => { await ask[part](); render(part); }));
    return true;
  } catch (error) {
    if (error instanceof NeedsToken) askToken(start);
    return false;
  }
}

/** The whole page, until all of it was answered; a lost connection or a missing token begins it anew by itself. */
async function askAll() {
  const turn = (turns += 1);
  model.columns = { round: [] };
  const isWhole = (await askThese(["status", "losses"]))
    && (await askThese(["columns", "peers", "participation", "rounds", "timeline", "alerts", "events", "sample"]));
  if (turn !== turns) return;
  if (isWhole) await drawn();
  else setTimeout(() => { if (turn === turns && id("lost").hidden && id("token-form").hidden) askAll(); }, AGAIN_MS);
}

async function drawn() {
  await new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); });
  document.body.dataset.loaded = "true";
}

// --- showing

const stale = new Set();
let drawing = null;

function render(...parts) {
  parts.forEach((part) => PANELS[part].forEach((show) => stale.add(show)));
  drawing ??= requestAnimationFrame(() => {
    drawing = null;
    if (!model.status) return;
    const now = [...stale];
    stale.clear();
    now.forEach((show) => show(model));
  });
}

const renderAll = () => render(...Object.keys(PANELS));

// --- the connection

function setConnection(isOpen, why) {
  const pill = id("connection");
  pill.textContent = isOpen ? "live" : "connection lost";
  pill.dataset.kind = isOpen ? "good" : "bad";
  id("lost").hidden = isOpen;
  if (isOpen && turns > 0 && document.body.dataset.loaded !== "true") askAll();
  if (isOpen) return;
  const since = heardAt ? `What you see is from ${clock(heardAt)}.` : "";
  id("lost").textContent = `Connection lost: ${why}. ${since} Trying again; this page goes on by itself.`;
}

/** Which answers an event changes. */
function touched(name) {
  const parts = ["timeline", "peers"];
  if (name.includes("round") || name === "fork.resolved") parts.push("rounds", "columns", "participation", "losses");
  if (name === "validation.measured" || name === "phase.closed") parts.push("losses");
  if (name.startsWith("alert.")) parts.push("alerts");
  return parts;
}

const stream = new EventStream({
  state: setConnection,
  needsToken: () => askToken(start),
  reset: () => { document.body.dataset.loaded = "false"; askAll(); },
  status: (value) => { takeStatus(value); render("status"); },
  event: (record) => {
    if (record.event === "fork.resolved") model.columns = { round: [] };
    addEvent(record);
    render("events");
    want(...touched(record.event));
  },
});

function start() {
  stream.run();
}

startControls();
startJoin();
startSample();
startSettings();
startSites(() => render("sites"));
startLosses(() => render("losses"));
startFigures(() => render("columns"));
startEvents(() => render("events"));
startRounds(() => askThese(["rounds"]));
id("span-choice").onchange = () => want("timeline");
startTheme(renderAll);
setInterval(() => {
  const isSeen = document.visibilityState === "visible" && id("lost").hidden && document.body.dataset.loaded === "true";
  if (isSeen) want("peers", "timeline");
}, TICK_MS);
start();
