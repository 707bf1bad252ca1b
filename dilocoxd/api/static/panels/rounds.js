// The table of rounds, page after page as it is asked for.

import { get } from "../source.js";
import { bytes, clock, count, say, seconds, table } from "../words.js";

const id = (name) => document.getElementById(name);
const ROWS = 25;
const FEW = 3;
let before = null; // null: follow the newest
let rows = [];

/** Ask for the page that is shown. One row more tells whether an older page follows. */
export async function askRounds() {
  rows = await get(`v1/rounds?limit=${ROWS + 1}${before === null ? "" : `&before=${before}`}`);
}

export function startRounds(changed) {
  id("older").onclick = () => { before = rows[ROWS - 1].round; changed(); };
  id("newer").onclick = () => { before += ROWS; changed(); };
}

export function showRounds({ status, nameOf }) {
  const shown = rows.slice(0, ROWS);
  if (before !== null && before > status.height) before = null;
  id("newer").disabled = before === null;
  id("older").disabled = rows.length <= ROWS;
  const range = shown.length ? `Rounds ${shown[shown.length - 1].round.toLocaleString("en")} to ${shown[0].round.toLocaleString("en")} of ${(status.height + 1).toLocaleString("en")}` : "No round yet.";
  say(id("rounds-range"), range);
  const who = (row) => (row.contributors.length > FEW ? `${row.contributors.length} sites` : row.contributors.map((one) => nameOf(one.peer)).join(", ") || "-");
  const known = (row, text) => (row.committed_at ? text : "-");
  id("rounds").replaceChildren(table("Rounds as this site saw them, newest first", [
    ["round", (row) => row.round.toLocaleString("en"), "number"],
    ["committed", (row) => (row.committed_at ? clock(row.committed_at) : "under way"), ""],
    ["sites", who, "wrap"],
    ["we", (row) => known(row, row.is_contributor ? "yes" : "no"), "more"],
    ["tokens", (row) => known(row, count(row.contributors.reduce((sum, one) => sum + one.tokens, 0))), "number"],
    ["attempts", (row) => known(row, count(row.attempts)), "number more"],
    ["gather", (row) => known(row, seconds(row.times.gather_s)), "number most"],
    ["exchange", (row) => known(row, seconds(row.times.exchange_s)), "number more"],
    ["vote", (row) => known(row, seconds(row.times.vote_s)), "number most"],
    ["apply", (row) => known(row, seconds(row.times.apply_s)), "number most"],
    ["sent", (row) => known(row, bytes(row.bytes_sent)), "number more"],
    ["received", (row) => known(row, bytes(row.bytes_received)), "number more"],
    ["idle", (row) => known(row, seconds(row.trainer_idle_s)), "number most"],
    ["why it was tried again", (row) => row.failures.join("; "), "wrap more"],
  ], shown, (row) => ({ "data-round": row.round })));
}
