// The first line: in plain words how it goes and how long it still takes. Pure: values in, sentences out.

import { loss, span } from "../words.js";

const DOING = {
  starting: "Starting", joining: "Joining the run", catching_up: "Catching up with the run", preparing: "Preparing data and trainers",
  training: "Training", paused: "Paused", leaving: "Leaving the run", failed: "Failed",
};
const LOOKED_AT = 6;
const FLAT = 0.002;
const CLAUSE = /\b(has|have|is|are|was|were|does|do|did|cannot)\b/; // a sentence of its own, not a thing that is awaited

/** falling, rising or flat: the newest validation losses against those just before. */
export function trend(validation) {
  const values = validation.slice(-2 * LOOKED_AT).map((point) => point[2]).filter((value) => value !== null);
  if (values.length < 2) return "";
  const half = Math.floor(values.length / 2);
  const mean = (part) => part.reduce((sum, value) => sum + value, 0) / part.length;
  const [before, after] = [mean(values.slice(0, half)), mean(values.slice(half))];
  if (Math.abs(after - before) < FLAT * Math.abs(before)) return "steady";
  return after < before ? "falling" : "rising";
}

/** What comes to its end, and when: the run where it has an end, else the fall of its learning rate. */
export function timeLeft(progress, when = "") {
  const hasEnd = progress.stop_after_tokens > 0;
  const left = hasEnd ? progress.end_s : progress.eta_s;
  if (left === null) return "";
  if (left === 0) return hasEnd ? "at the end of the run" : "learning rate at its lowest";
  return hasEnd ? `${span(left)} to the end of the run${when}` : `learning rate falls for ${span(left)} more${when}`;
}

/** Training, round 63, 3 of 3 sites, loss 3.13 falling, learning rate falls for 2 h 10 min more. */
export function headline(status, validation) {
  const { progress, losses, round } = status;
  const doing = DOING[status.state] ?? status.state.replaceAll("_", " ");
  const sites = Object.entries(progress.sites).reduce((sum, [state, number]) => (state === "left" ? sum : sum + number), 0);
  const parts = [doing];
  if (status.state !== "starting" && status.state !== "joining") parts.push(`round ${round.round.toLocaleString("en")}`);
  if (sites > 1) parts.push(`${progress.sites.training ?? 0} of ${sites} sites train`);
  else parts.push("no other site yet");
  const newest = losses.validation ?? losses.inner;
  if (newest !== null) parts.push(`loss ${loss(newest)} ${trend(validation)}`.trim());
  parts.push(timeLeft(progress, status.state === "training" ? "" : " once it trains"));
  return `${parts.filter((part) => part).join(", ")}.`;
}

/** What is waited for, as a sentence of its own. */
export function waiting(status) {
  const text = status.waiting_for.replace(/^wait(ing|s) for /i, "").replace(/\.*$/, "");
  if (text) return CLAUSE.test(text.replace(/\(.*?\)/g, "")) ? `Waiting: ${text}.` : `Waiting for ${text}.`;
  return status.state === "training" ? "Nothing is waited for: training and exchange go on." : "Nothing is waited for.";
}
