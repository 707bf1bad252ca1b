// What the site does now: headline, bars and figures.

import { bytes, clock, count, facts, hash, loss, percent, rate, say, seconds, small, span, tokensPerSecond } from "../words.js";
import { headline, waiting } from "./headline.js";

const id = (name) => document.getElementById(name);
const STAGES_MAX = 8; // more are shown as a range
const KINDS = { training: "good", failed: "bad" };

export function showNow({ status, losses }) {
  const { phase, progress } = status;
  say(id("run-id"), status.run_id);
  say(id("site-name"), status.name);
  document.title = `${status.state.replaceAll("_", " ")}, height ${status.height} - ${status.name} - dilocoxd`;
  say(id("state"), status.state.replaceAll("_", " "));
  id("state").dataset.kind = KINDS[status.state] ?? "warn";
  say(id("now-h"), headline(status, losses.validation));
  say(id("waiting"), waiting(status));
  id("phase-text").textContent = phase.phase === null || phase.inner_steps === 0 ? "No phase is trained now."
    : `Phase ${phase.phase}: inner step ${phase.inner_step} of ${phase.inner_steps}, ${seconds(phase.step_seconds)} each`;
  id("phase-bar").value = phase.inner_steps > 0 ? Math.min(1, phase.inner_step / phase.inner_steps) : 0;
  id("run-text").textContent = placeOf(progress);
  const [done, total] = progress.stop_after_tokens > 0 ? [progress.swarm_tokens, progress.stop_after_tokens] : [progress.steps_done ?? 0, progress.steps_total];
  id("run-bar").value = total > 0 ? Math.min(1, done / total) : 0;
  id("facts").replaceChildren(...facts(main(status)));
  id("more-facts").replaceChildren(...facts(more(status)));
  say(id("footer"), `dilocoxd ${status.version}, peer ${status.peer_id}.`);
}

/** Of a run that has an end its tokens, of one that has none its learning rate. */
function placeOf({ stop_after_tokens: end, swarm_tokens: tokens, steps_done: done, steps_total: total }) {
  const [written, whole] = [(done ?? 0).toLocaleString("en"), total.toLocaleString("en")];
  if (end > 0) return `Whole run: ${tokens.toLocaleString("en")} of ${end.toLocaleString("en")} tokens (${percent(Math.min(tokens, end), end)})`;
  if (done === null) return "The place on the schedule is not known yet.";
  const on = "the run goes on until it is stopped";
  if (done > total) return `Step ${written}: the learning rate is at its lowest since step ${whole}; ${on}`;
  return `Learning rate: step ${written} of ${whole} (${percent(done, total)}); ${on}`;
}

function timeFact({ stop_after_tokens: end, end_s, eta_s }) {
  const [label, left, over] = end > 0 ? ["Run ends in", end_s, "now"] : ["Learning rate falls for", eta_s, "no longer"];
  return [label, left === 0 ? over : span(left), left > 0 ? `until ${clock(Date.now() / 1000 + left)}` : ""];
}

function main(status) {
  const { progress, losses, lifetime, totals } = status;
  return [
    timeFact(progress),
    ["Speed here", tokensPerSecond(progress.tokens_per_s), `swarm: ${tokensPerSecond(progress.swarm_tokens_per_s)}`],
    ["Loss, shared model", loss(losses.validation), losses.validation === null ? "not measured yet" : `perplexity ${small(Math.exp(losses.validation))}, state ${losses.validation_round}`],
    ["Loss, inner", loss(losses.inner), "this site, newest step"],
    ["Time of a round", seconds(progress.round_s), "median of the newest"],
    ["Tokens", count(progress.swarm_tokens), `here: ${count(lifetime.tokens)}`],
    ["Sent / received", [lifetime.bytes_sent, lifetime.bytes_received].map((value) => bytes(value).replace(" ", "\u00a0")).join(" / "), lifetime.bytes_sent === null ? "not known for earlier lives" : `since ${clock(lifetime.counted_since)}`],
    ["Trainers idle", percent(totals.idle_s, totals.idle_s + totals.train_s), seconds(totals.idle_s)],
  ];
}

function mfuNote({ mfu, model_flops_per_s, tokens_per_s }) {
  if (mfu !== null) return "of site.device_flops_peak";
  const isUnknown = model_flops_per_s === null && tokens_per_s !== null;
  return isUnknown ? "what a step takes is not known" : "set site.device_flops_peak";
}

function more(status) {
  const { progress, lifetime, totals, payload, round } = status;
  return [
    ["Learning rate", small(progress.learning_rate)],
    ["Gradient norm", small(progress.gradient_norm), "before clipping"],
    ["Useful arithmetic", rate(progress.model_flops_per_s, "FLOP/s"), "6 x parameters x tokens/s, 4 for frozen ones"],
    ["MFU", progress.mfu === null ? "-" : percent(progress.mfu, 1), mfuNote(progress)],
    ["Pipeline waits", progress.bubble === null ? "-" : percent(progress.bubble, 1), "of an inner step, for other stages"],
    ...stages(progress.stages),
    ["Reading data", seconds(progress.data_s), "of an inner step, slowest trainer"],
    ["Skipped steps", count(progress.skipped_steps), "a gradient was not finite"],
    ["Memory", bytes(progress.memory_bytes), "all processes of this site"],
    ["Fullest trainer", progress.rank_memory_bytes.length ? bytes(Math.max(...progress.rank_memory_bytes)) : "-", `of ${progress.rank_memory_bytes.length}; its GPU, or main memory`],
    ["Parameters", payload ? count(payload.parameters) : "-"],
    ["Outer steps (height)", count(status.height)],
    ["Round now", `${round.round}: ${round.state}`, round.attempt > 0 ? `attempt ${round.attempt + 1}` : ""],
    ["Own contributions", count(totals.contributions), `in ${count(totals.rounds_committed)} rounds`],
    ["Failed attempts", count(lifetime.attempts_failed)],
    ["Inner steps here", count(lifetime.inner_steps)],
    ...outside(status.public_addresses),
    ...audits(status.audits),
    ["Chain head", hash(status.chain_head)],
    ["Running for", seconds(status.uptime_s)],
  ];
}

/** What the stages of a pipeline compute of an inner step, and the cut that would be faster; nothing without one. */
function stages(measured) {
  if (measured === null) return [];
  const { compute_s: each, faster_layers: layers, faster_saves: saves } = measured;
  const times = each.length > STAGES_MAX ? `${seconds(Math.min(...each))} to ${seconds(Math.max(...each))}` : each.map(seconds).join(" / ");
  const note = saves === null ? "of an inner step, along the pipeline" : `layers_per_stage = [${layers.join(", ")}] would save ${percent(saves, 1)} of a step`;
  return [["Stages compute", times, note]];
}

/** Where others see this site, and whether they get in there; nothing while they see no public address. */
function outside(addresses) {
  return addresses.map(({ address, num_reached: reached, num_tried: tried, is_announced: isAnnounced }) => [
    "Seen from outside", address, `reached by ${reached} of ${tried} that tried${isAnnounced ? ", announced" : ""}`,
  ]);
}

/** Sums of others that were made again; nothing in runs that check none. */
function audits({ made, proofs, unanswered, undecided, bytes_received: received }) {
  if (made + unanswered + undecided === 0) return [];
  return [["Sums made again", count(made), `${count(proofs)} false, ${count(unanswered + undecided)} not compared, ${bytes(received)}`]];
}
