// Buttons that act: pause, resume, snapshot, leave. The token is asked for once and kept for this tab.

import { NeedsToken, forgetToken, hasToken, post, setToken } from "../source.js";
import { say } from "../words.js";

const id = (name) => document.getElementById(name);
let afterToken = null;

/** Show the form, and whether the token that was given is wrong; `then` is called with another one set. */
export function askToken(then) {
  if (id("token-form").hidden) id("token-wrong").hidden = !hasToken(); // what was asked beside it asks again
  forgetToken();
  afterToken = then;
  id("token-form").hidden = false;
  id("token").focus();
}

/** Tell the daemon, and show at `place` what it says; `then` is called when it has agreed. */
export async function act(name, path, body, { place = "done", then = () => {} } = {}) {
  try {
    say(id(place), `${name} ...`);
    say(id(place), await post(path, body));
    await then();
  } catch (error) {
    if (error instanceof NeedsToken) {
      say(id(place), "The daemon wants its token first.");
      askToken(() => act(name, path, body, { place, then }));
    } else {
      say(id(place), `Not done: ${error.message}`);
    }
  }
}

function leaveSure(isAsked) {
  id("leave-sure").hidden = !isAsked;
  id("leave").hidden = isAsked;
  (isAsked ? id("leave-no") : id("leave")).focus();
}

export function startControls() {
  id("pause").onclick = () => act("Pausing", "v1/control/pause", { reason: "asked for on the dashboard" });
  id("resume").onclick = () => act("Resuming", "v1/control/resume");
  id("snapshot").onclick = () => act("Writing a snapshot", "v1/control/snapshot");
  id("leave").onclick = () => leaveSure(true);
  id("leave-no").onclick = () => leaveSure(false);
  id("leave-yes").onclick = () => { leaveSure(false); act("Leaving", "v1/control/leave"); };
  id("token-cancel").onclick = () => { id("token-form").hidden = true; afterToken = null; };
  id("token-form").onsubmit = (event) => {
    event.preventDefault();
    setToken(id("token").value);
    id("token").value = "";
    id("token-form").hidden = true;
    afterToken?.();
    afterToken = null;
  };
}

export function showControls({ status }) {
  const isPaused = status.state === "paused";
  const hadFocus = document.activeElement === id("pause") || document.activeElement === id("resume");
  if (id("pause").hidden === isPaused) return;
  id("pause").hidden = isPaused;
  id("resume").hidden = !isPaused;
  if (hadFocus) id(isPaused ? "resume" : "pause").focus();
}
