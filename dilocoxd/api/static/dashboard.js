// The page: asks the daemon, listens to its events, and shows what came. What is shown is only ever what was last heard;
// when the connection is lost, the page says so and since when.

import { Curves, Timeline } from "./charts.js";
import { EventStream, NeedsToken, eachPage, get, setToken } from "./source.js";
import { bytes, clock, count, element, facts, hash, loss, percent, seconds, short, table } from "./words.js";

const PAGE = 1000;
const ROUNDS_KEPT = 20000;
const ROWS = 25;
const LOSS_POINTS = 2000;
const CALM_MS = 1000; // after an event, wait this long for more of them before asking the daemon
const TICK_MS = 5000;
const id = (name) => document.getElementById(name);

const rounds = new Map(); // round -> row of v1/rounds
let status = null;
let peers = [];
let timeline = null;
let losses = { inner: [], validation: [] };
let firstRow = null; // newest round of the table's page; null = follow the newest
let heardAt = 0;

const charts = {
  loss: new Curves(id("loss-chart"), { isTime: true, unit: loss }),
  bytes: new Curves(id("bytes-chart"), { unit: bytes }),
  schedule: new Curves(id("schedule-chart"), { unit: (value) => String(value) }),
  times: new Curves(id("times-chart"), { unit: seconds }),
  timeline: new Timeline(id("timeline-chart")),
};

// --- asking

const wanted = new Set();
let calm = null;

/** Ask for these soon, once, however often this is called. */
function want(...names) {
  names.forEach((name) => wanted.add(name));
  calm ??= setTimeout(async () => {
    calm = null;
    const now = [...wanted];
    wanted.clear();
    try {
      for (const name of now) await ask[name]();
      render();
    } catch (error) {
      if (error instanceof NeedsToken) needToken();
    }
  }, CALM_MS);
}

const ask = {
  async status() { status = await get("v1/status"); heardAt = Date.now(); },
  async peers() { peers = await get("v1/peers"); },
  async losses() { losses = await get(`v1/losses?points=${LOSS_POINTS}`); },
  async timeline() {
    // The daemon's clock, not the browser's: they may differ by hours.
    const now = status.started_at + status.uptime_s;
    const since = Math.max(0, Math.floor(now - Number(id("span-choice").value)));
    timeline = await get(`v1/timeline/sites?since=${since}`);
  },
  /** Only what is not known yet: the newest rounds, back to the first that is known and whole. */
  async rounds() {
    await eachPage("v1/rounds", rounds.size ? 50 : PAGE, (rows) => {
      const isNew = rows.some((row) => !(rounds.get(row.round)?.applied_at > 0));
      rows.forEach((row) => rounds.set(row.round, row));
      return isNew && rounds.size < ROUNDS_KEPT;
    });
  },
};

async function askAll() {
  rounds.clear();
  for (const name of ["status", "peers", "rounds", "losses", "timeline"]) {
    await ask[name]();
    render();
  }
  document.body.dataset.loaded = "true";
}

// --- the connection

function setConnection(isOpen, why) {
  const pill = id("connection");
  pill.textContent = isOpen ? "live" : "connection lost";
  pill.dataset.kind = isOpen ? "good" : "bad";
  id("lost").hidden = isOpen;
  if (isOpen) return;
  const since = heardAt ? `What you see is from ${new Date(heardAt).toLocaleTimeString()}.` : "";
  id("lost").textContent = `Connection lost: ${why}. ${since} Trying again; this page goes on by itself.`;
}

function needToken() {
  id("token-form").hidden = false;
  id("token").focus();
}

const stream = new EventStream({
  state: setConnection,
  needsToken: needToken,
  reset: () => { document.body.dataset.loaded = "false"; askAll().catch((error) => { if (error instanceof NeedsToken) needToken(); }); },
  status: (value) => { status = value; heardAt = Date.now(); render(); },
  event: (event) => want("rounds", "timeline", "peers", ...(event.event.includes("loss") || event.event.includes("round") ? ["losses"] : [])),
});

// --- showing

let drawing = null;

function render() {
  drawing ??= requestAnimationFrame(() => {
    drawing = null;
    if (!status) return;
    renderNow();
    renderAlerts();
    renderPeers();
    renderRounds();
    renderCharts();
    renderTimeline();
  });
}

function renderNow() {
  id("run-id").textContent = status.run_id;
  document.title = `${status.state}, height ${status.height} - dilocoxd`;
  const pill = id("state");
  pill.textContent = status.state.replace("_", " ");
  pill.dataset.kind = { training: "good", failed: "bad" }[status.state] ?? "warn";
  const waiting = status.waiting_for ? `Waits for ${status.waiting_for}.` : "Waits for nothing: training and exchange go on.";
  if (id("waiting").textContent !== waiting) id("waiting").textContent = waiting;
  const { phase, totals, losses: newest, payload, round } = status;
  id("phase-text").textContent = phase.phase === null ? "No phase is trained now."
    : `Phase ${phase.phase}: inner step ${phase.inner_step} of ${phase.inner_steps}, ${seconds(phase.step_seconds)} each`;
  id("phase-bar").value = phase.inner_steps > 0 ? phase.inner_step / phase.inner_steps : 0;
  id("facts").replaceChildren(...facts([
    ["Outer steps (height)", count(status.height)],
    ["Round now", `${round.round}: ${round.state}${round.attempt > 0 ? `, attempt ${round.attempt + 1}` : ""}`],
    ["Shared model, validation loss", loss(newest.validation)],
    ["Inner loss", loss(newest.inner)],
    ["Tokens since start", count(totals.tokens)],
    ["Trainers idle", `${percent(totals.idle_s, totals.idle_s + totals.train_s)} (${seconds(totals.idle_s)})`],
    ["Own contributions", count(totals.contributions)],
    ["Failed attempts", count(totals.attempts_failed)],
    ["Sent / received", `${bytes(totals.bytes_sent)} / ${bytes(totals.bytes_received)}`],
    ["Chain head", hash(status.chain_head)],
    ["Running for", seconds(status.uptime_s)],
    ...(payload ? [["Parameters", count(payload.parameters)]] : []),
  ]));
  id("bytes-hint").textContent = payload
    ? `One contribution is ${bytes(payload.payload_bytes)} instead of ${bytes(payload.fp32_bytes)} in fp32: ${payload.compression_ratio.toFixed(1)} times smaller.` : "";
  id("footer").textContent = `dilocoxd ${status.version}, peer ${status.peer_id}. Others join with: dilocoxd join ${status.join_address}`;
}

function renderAlerts() {
  const boxes = status.alerts.map((alert) => {
    const box = element("div", "", { class: "alert", "data-kind": alert.severity === "info" ? "warn" : alert.severity === "critical" ? "bad" : "warn" });
    box.append(element("strong", `${alert.severity}: ${alert.text}`));
    box.append(element("p", `What to do: ${alert.remedy}`), element("p", `Since ${clock(alert.since)}; see "${alert.code}" in the runbook.`));
    return box;
  });
  const text = JSON.stringify(status.alerts);
  if (id("alerts").dataset.text === text) return; // said once, not at every drawing
  id("alerts").dataset.text = text;
  id("alerts").replaceChildren(...(boxes.length ? boxes : [element("p", "None.")]));
}

function renderPeers() {
  const { known, live, took_part_last_round: tookPart } = status.peers;
  id("peers-hint").textContent = `${known} known, ${live} live, ${tookPart} took part in the newest round (this site not counted).`;
  id("peers").replaceChildren(table("All other sites that this one knows", [
    ["peer", (p) => short(p.peer_id), "mono"],
    ["state", (p) => (p.is_live ? p.state : `${p.membership}: last heard of ${seconds(p.last_seen_s)} ago`), ""],
    ["in last round", (p) => (p.took_part_last_round ? "yes" : "no"), ""],
    ["height", (p) => count(p.height), "number"],
    ["lag", (p) => (p.rounds_behind > 0 ? `${p.rounds_behind} behind` : p.rounds_behind < 0 ? `${-p.rounds_behind} ahead` : "none"), ""],
    ["chain head", (p) => (p.chain_head === status.chain_head ? "same as ours" : hash(p.chain_head)), "mono"],
    ["link to it", (p) => (p.link_bytes_per_s === null ? "not measured" : `${bytes(p.link_bytes_per_s)}/s`), "number"],
    ["its upload", (p) => (p.bandwidth_bytes_per_s ? `${bytes(p.bandwidth_bytes_per_s)}/s` : "-"), "number"],
    ["inner step", (p) => seconds(p.step_seconds), "number"],
    ["address", (p) => p.addresses[0] ?? "-", "mono"],
  ], peers, (p) => ({ "data-live": p.is_live, "data-peer": p.peer_id })));
}

const known = () => [...rounds.keys()].sort((a, b) => a - b);

function renderRounds() {
  const numbers = known().reverse();
  const start = firstRow === null ? 0 : Math.max(0, numbers.findIndex((number) => number <= firstRow));
  const shown = numbers.slice(start, start + ROWS).map((number) => rounds.get(number));
  id("newer").disabled = start === 0;
  id("older").disabled = start + ROWS >= numbers.length;
  id("newer").onclick = () => { firstRow = start - ROWS <= 0 ? null : numbers[start - ROWS]; renderRounds(); };
  id("older").onclick = () => { firstRow = numbers[start + ROWS]; renderRounds(); };
  id("rounds-range").textContent = shown.length ? `Rounds ${shown[shown.length - 1].round} to ${shown[0].round} of ${numbers.length} known` : "No round yet.";
  id("rounds").replaceChildren(table("Rounds as this site saw them, newest first", [
    ["round", (r) => r.round, "number"],
    ["committed", (r) => (r.committed_at ? clock(r.committed_at) : "under way"), ""],
    ["contributors", (r) => r.contributors.map((c) => (c.peer === status.peer_id ? "this site" : short(c.peer))).join(", ") || "-", "mono"],
    ["tokens", (r) => count(r.contributors.reduce((sum, c) => sum + c.tokens, 0)), "number"],
    ["attempts", (r) => r.attempts, "number"],
    ["gather", (r) => seconds(r.times.gather_s), "number"],
    ["exchange", (r) => seconds(r.times.exchange_s), "number"],
    ["vote", (r) => seconds(r.times.vote_s), "number"],
    ["apply", (r) => seconds(r.times.apply_s), "number"],
    ["sent", (r) => bytes(r.bytes_sent), "number"],
    ["received", (r) => bytes(r.bytes_received), "number"],
    ["idle", (r) => seconds(r.trainer_idle_s), "number"],
    ["why it was tried again", (r) => r.failures.join("; ") || "", ""],
  ], shown, (r) => ({ "data-round": r.round })));
}

/** At most `most` rows, evenly chosen: 10,000 points on 700 pixels only cost time. */
function thinned(rows, most = 3000) {
  if (rows.length <= most) return rows;
  return Array.from({ length: most }, (_, index) => rows[Math.floor((index * (rows.length - 1)) / (most - 1))]);
}

function renderCharts() {
  const rows = thinned(known().map((number) => rounds.get(number)));
  const xs = rows.map((row) => row.round);
  const column = (pick) => rows.map(pick);
  charts.bytes.show(xs, [
    { label: "sent", colour: "--one", values: column((r) => r.bytes_sent) },
    { label: "received", colour: "--two", values: column((r) => r.bytes_received) },
  ]);
  charts.schedule.show(xs, [
    { label: "H", colour: "--one", values: column((r) => r.next_inner_steps), width: 2 },
    { label: "r", colour: "--two", values: column((r) => r.next_lowrank_r), width: 2 },
  ]);
  charts.times.show(xs, [
    { label: "exchange", colour: "--one", values: column((r) => r.times.exchange_s) },
    { label: "trainers idle", colour: "--two", values: column((r) => r.trainer_idle_s) },
  ]);
  const last = rows[rows.length - 1];
  const range = rows.length ? `rounds ${xs[0]} to ${xs[xs.length - 1]}` : "no rounds yet";
  id("bytes-chart").setAttribute("aria-label", last ? `Bytes of ${range}; newest: ${bytes(last.bytes_sent)} sent, ${bytes(last.bytes_received)} received` : "Bytes: no rounds yet");
  id("schedule-chart").setAttribute("aria-label", last ? `r and H of ${range}; newest: r ${last.next_lowrank_r}, H ${last.next_inner_steps}` : "r and H: no rounds yet");
  id("times-chart").setAttribute("aria-label", last ? `Times of ${range}; newest exchange: ${seconds(last.times.exchange_s)}, idle ${seconds(last.trainer_idle_s)}` : "Times: no rounds yet");
  renderLosses();
}

function renderLosses() {
  const byTime = new Map();
  losses.inner.forEach(([time, , value]) => byTime.set(time, [value, null]));
  losses.validation.forEach(([time, , value]) => byTime.set(time, [byTime.get(time)?.[0] ?? null, value]));
  const xs = [...byTime.keys()].sort((a, b) => a - b);
  charts.loss.show(xs, [
    { label: "inner, this site", colour: "--one", values: xs.map((x) => byTime.get(x)[0]), width: 1 },
    { label: "shared model, validation", colour: "--two", values: xs.map((x) => byTime.get(x)[1]), width: 2.5, points: losses.validation.length < 200 },
  ]);
  const newest = losses.validation[losses.validation.length - 1];
  const inner = losses.inner[losses.inner.length - 1];
  id("loss-chart").setAttribute("aria-label", `Loss: inner ${loss(inner?.[2])}, shared model ${loss(newest?.[2])}${newest ? ` after round ${newest[1]}` : ""}`);
  id("loss-table").replaceChildren(table("Shared model, newest rounds", [
    ["round", (p) => p[1], "number"], ["time", (p) => clock(p[0]), ""], ["validation loss", (p) => loss(p[2]), "number"],
  ], losses.validation.slice(-20).reverse()));
}

function renderTimeline() {
  if (!timeline) return;
  const { end } = timeline;
  const start = end - Number(id("span-choice").value);
  const sites = timeline.sites.map((site) => ({ name: site.is_self ? "this site" : short(site.peer_id), spans: site.spans.filter((span) => span.kind !== "phase" && span.end > start) }));
  charts.timeline.show(start, end, sites);
  const spent = (site, kind) => site.spans.filter((span) => span.kind === kind).reduce((sum, span) => sum + Math.min(span.end, end) - Math.max(span.start, start), 0);
  id("timeline-chart").setAttribute("aria-label", `Timeline: ${sites.map((site) => `${site.name} ${site.spans.length} stretches, idle ${seconds(spent(site, "idle"))}`).join("; ")}`);
  id("timeline-table").replaceChildren(table("Time in the stretch shown", [
    ["site", (s) => s.name, "mono"],
    ...["compute", "exchange", "apply", "idle", "training", "silent"].map((kind) => [kind, (s) => seconds(spent(s, kind)), "number"]),
  ], sites));
}

// --- colours

const THEMES = ["system", "light", "dark"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const chosen = localStorage.getItem("dilocoxd-theme") ?? "system";
  document.documentElement.dataset.theme = chosen === "system" ? (systemDark.matches ? "dark" : "light") : chosen;
  id("theme").textContent = `Colours: ${chosen}`;
  id("theme").setAttribute("aria-label", `Colours: ${chosen}; press for the next choice`);
  render();
}

id("theme").onclick = () => {
  const chosen = localStorage.getItem("dilocoxd-theme") ?? "system";
  localStorage.setItem("dilocoxd-theme", THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  applyTheme();
};
systemDark.addEventListener("change", applyTheme);
id("span-choice").onchange = () => want("timeline");
id("token-form").onsubmit = (event) => {
  event.preventDefault();
  setToken(id("token").value);
  id("token-form").hidden = true;
  stream.run();
};

applyTheme();
setInterval(() => {
  const isSeen = document.visibilityState === "visible" && id("lost").hidden && document.body.dataset.loaded === "true";
  if (isSeen) want("peers", "timeline");
}, TICK_MS);
stream.run();
