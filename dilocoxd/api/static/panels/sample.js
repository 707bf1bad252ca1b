// A text by the model of the newest snapshot: asked for with a button, shown with its round and prompt.

import { get } from "../source.js";
import { element, say, seconds } from "../words.js";
import { act } from "./controls.js";

const id = (name) => document.getElementById(name);
const POLL_MS = 1000;
let poll = null;

function show(found) {
  const isRunning = found.state === "running";
  say(id("sample-state"), isRunning || found.state === "failed" ? found.text : "");
  id("sample-text").hidden = found.prompt === "";
  if (found.prompt !== "") {
    id("sample-words").replaceChildren(element("strong", found.prompt), found.written);
    say(id("sample-round"), `Round ${found.round.toLocaleString("en")}, from the prompt in bold, in ${seconds(found.took_s)}.`);
  }
  clearTimeout(poll);
  if (isRunning) poll = setTimeout(() => askSample().catch(() => say(id("sample-state"), "The daemon does not answer.")), POLL_MS);
}

export async function askSample() {
  show(await get("v1/sample"));
}

export function startSample() {
  id("sample-form").onsubmit = (event) => {
    event.preventDefault();
    act("Asking for a text", "v1/control/sample", { prompt: id("sample-prompt").value }, { place: "sample-state", then: askSample });
  };
}
