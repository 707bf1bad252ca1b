// All sites, this one among them: how many do what, who waits for whom, and a table to sort and search.

import { bytes, count, element, loss, say, seconds, stateOf, stateOfMany, table } from "../words.js";

const id = (name) => document.getElementById(name);
const FEW = 12;
const MANY_ROUNDS_BEHIND = 1;
const TROUBLE = ["dead", "failed", "leaving", "joining", "starting", "preparing", "catching_up", "paused", "halted", "left", "training"];
let isAllShown = false;

/** All sites as rows of one shape, ours first. */
export function siteRows({ status, peers }) {
  const own = {
    peer_id: status.peer_id, name: status.name, isSelf: true, isLive: true, state: status.state, height: status.height, behind: status.rounds_behind,
    step_s: status.phase.step_seconds || null, tokens_per_s: status.progress.tokens_per_s, loss: status.losses.inner, tookPart: status.took_part_last_round, link: null, way: "-", heard_s: null,
    address: (status.addresses[0] ?? "-").replace(/\/p2p\/.*$/, ""), chain_head: status.chain_head, probation: status.probation,
  };
  const others = peers.map((peer) => ({
    peer_id: peer.peer_id, name: peer.name, isSelf: false, isLive: peer.is_live, state: stateNow(peer), height: peer.height,
    behind: peer.rounds_behind, step_s: peer.step_seconds, tokens_per_s: peer.is_live ? peer.tokens_per_s : null, loss: peer.inner_loss,
    tookPart: peer.rounds_behind < 0 ? null : peer.took_part_last_round, // of a round that we do not have yet nobody knows
    link: peer.link_bytes_per_s, way: wayTo(peer), heard_s: peer.last_seen_s, address: (peer.addresses[0] ?? "-").replace(/(\/tcp\/\d+)\/p2p\/\w+$/, "$1"), chain_head: peer.chain_head,
    probation: peer.probation,
  }));
  return [own, ...others];
}

/** How it is reached; while nothing connects us, that is not known. */
function wayTo(peer) {
  const nodes = peer.nodes.length ? `, ${peer.nodes.filter((node) => node.is_reached).length} of ${count(peer.nodes.length)} nodes` : "";
  if (peer.way === "relay") return `through a relay${nodes}`;
  if (peer.way === "direct") return `${peer.has_data ? "directly, data connections" : "directly"}${nodes}`;
  return "-";
}

/** As the daemon counts it: a silent peer is dead, one that said goodbye has left. */
function stateNow(peer) {
  if (peer.is_live) return peer.state;
  return peer.state === "left" || peer.state === "leaving" ? "left" : "dead";
}

const ORDERS = {
  trouble: (a, b) => TROUBLE.indexOf(a.state) - TROUBLE.indexOf(b.state) || b.behind - a.behind || (b.step_s ?? 0) - (a.step_s ?? 0),
  slow: (a, b) => (b.step_s ?? -1) - (a.step_s ?? -1),
  behind: (a, b) => b.behind - a.behind,
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
};

/** Rows as chosen: searched and sorted; `all` even if only a few are shown. */
export function chosenSites(model, all = false) {
  const wanted = id("site-find").value.trim().toLowerCase();
  const order = ORDERS[id("site-order").value];
  const found = siteRows(model).filter((row) => !wanted || `${row.name} ${row.state} ${stateOf(row.state)} ${row.peer_id}`.toLowerCase().includes(wanted));
  found.sort((a, b) => order(a, b) || ORDERS.name(a, b));
  return all || isAllShown ? found : found.slice(0, FEW);
}

export function startSites(changed) {
  id("site-find").oninput = changed;
  id("site-order").onchange = changed;
  id("site-all").onclick = () => { isAllShown = !isAllShown; changed(); };
}

/** Of a site in an open run that does not count in full yet. */
function onProbation(row, status) {
  const waits = row.isSelf && status.place_wait ? `; ${status.place_wait}` : "";
  return row.probation ? `, on probation: ${row.probation.rounds_done} of ${row.probation.rounds} rounds${waits}` : "";
}

/** Ours is null while nobody knows it. */
function lag(row) {
  if (row.behind === null) return row.state === "catching_up" ? stateOf(row.state) : "-";
  return row.behind > 0 ? `${count(row.behind)} behind` : row.behind < 0 ? `${count(-row.behind)} ahead` : "up to date";
}

export function showSites(model) {
  const { status } = model;
  const rows = chosenSites(model);
  const everybody = chosenSites(model, true).length;
  const states = Object.entries(status.progress.sites);
  say(id("sites-summary"), `${states.map(([state, number]) => stateOfMany(state, number)).join(", ")}. ${status.height ? `${status.peers.took_part_last_round} took part in the newest round.` : ""}`);
  say(id("waits"), waits(model));
  id("site-all").hidden = everybody <= FEW;
  say(id("site-all"), isAllShown ? `Show ${FEW} only` : `Show all ${everybody}`);
  id("sites").replaceChildren(table(`${rows.length} of ${status.peers.known + 1} sites`, [
    ["site", (row) => mark(row, status), "name"],
    ["state", (row) => (row.state === "dead" && row.heard_s !== null ? `dead for ${seconds(row.heard_s)}` : stateOf(row.state)) + onProbation(row, status), ""],
    ["rounds", lag, "number"],
    ["tok/s", (row) => count(row.tokens_per_s), "number"],
    ["inner step", (row) => seconds(row.step_s), "number more"],
    ["inner loss", (row) => loss(row.loss), "number more"],
    ["last round", (row) => (row.tookPart === null ? "-" : row.tookPart ? "took part" : "missed it"), "more"],
    ["link to it", (row) => (row.isSelf ? "-" : row.link === null ? "not measured" : `${bytes(row.link)}/s`), "number more"],
    ["reached", (row) => row.way, "more"],
    ["chain", (row) => (row.isSelf ? "ours" : row.chain_head === status.chain_head ? "as ours" : "other tip"), "more"],
    ["address", (row) => row.address, "mono most"],
  ], rows, (row) => ({ "data-live": row.isLive, "data-peer": row.peer_id, "data-state": row.state })));
}

function mark(row, status) {
  const made = element("span", row.isSelf ? `${row.name} (this site)` : row.name, { title: row.peer_id });
  if (waitedFor(status, row)) made.append(element("span", "waited for", { class: "tag" }));
  return made;
}

/** Whether the site is named in what is waited for, as a word of its own: attic is not attic-2. */
function waitedFor(status, row) {
  const words = `${status.waiting_for} ${status.round.waiting_for}`.split(/[^\w.~-]+/).map((word) => word.replace(/\.+$/, ""));
  return !row.isSelf && words.includes(row.name);
}

/** Who waits for whom, as far as it can be seen from here. */
function waits(model) {
  const { status } = model;
  const rows = siteRows(model).filter((row) => !row.isSelf);
  const parts = [];
  const held = rows.filter((row) => waitedFor(status, row)).map((row) => row.name);
  if (held.length) parts.push(`This site waits for ${names(held)}.`);
  const late = rows.filter((row) => row.isLive && row.state === "training" && row.behind <= 0 && row.tookPart === false).map((row) => row.name);
  if (late.length) parts.push(`Not in the newest round although ${late.length === 1 ? "it trains" : "they train"}: ${names(late)}.`);
  const behind = rows.filter((row) => row.isLive && row.behind > MANY_ROUNDS_BEHIND).map((row) => row.name);
  if (behind.length) parts.push(`Behind: ${names(behind)}.`);
  const slow = rows.filter((row) => row.isLive && row.step_s).sort(ORDERS.slow)[0];
  if (slow && rows.length > 1) parts.push(`Slowest: ${slow.name}, ${seconds(slow.step_s)} for an inner step.`);
  return parts.join(" ") || "No site is waited for in particular.";
}

function names(list) {
  return list.length <= 4 ? list.join(", ") : `${list.slice(0, 3).join(", ")} and ${list.length - 3} more`;
}
