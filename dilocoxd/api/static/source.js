// Where the data comes from: JSON over fetch, and the event stream, which heals itself. Knows nothing of the page.

const TOKEN_KEY = "dilocoxd-token";
const RETRY_FIRST_MS = 1000;
const RETRY_MAX_MS = 15000;
const SILENCE_MS = 25000; // the daemon says something every 10 s

/** Letters that no header carries make another wrong token of it, which the daemon refuses; the browser would refuse every request. */
export function setToken(token) { sessionStorage.setItem(TOKEN_KEY, token.trim().replace(/[^\x21-\x7e]/g, "?")); }
export function forgetToken() { sessionStorage.removeItem(TOKEN_KEY); }
export const hasToken = () => sessionStorage.getItem(TOKEN_KEY) !== null;

function headers(more) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : { ...more };
}

export class NeedsToken extends Error {}

/** JSON of a GET path. The browser's cache and the daemon's entity tags make an unchanged answer cheap. */
export async function get(path) {
  const answer = await fetch(path, { headers: headers({ Accept: "application/json" }), cache: "no-cache" });
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
  return answer.json();
}

/** Tell the daemon to do something. Answers with its sentence; throws NeedsToken, or an Error with the daemon's reason. */
export async function post(path, body = {}) {
  const answer = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) });
  const value = await answer.json();
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) throw new Error(value.detail ?? answer.statusText);
  return value.text ?? "done";
}

/** Events of v1/events, for ever: `on` has event, status, reset, state(isOpen, text) and needsToken. */
export class EventStream {
  constructor(on) {
    this.on = on;
    this.lastId = "";
    this.retryMs = RETRY_FIRST_MS;
    this.isNeeded = true;
  }

  async run() {
    while (this.isNeeded) {
      let why = "the daemon ended the connection";
      try {
        await this.#connectOnce();
      } catch (error) {
        if (error instanceof NeedsToken) { this.on.needsToken(); return; }
        why = error.name === "AbortError" ? "the daemon was silent for too long" : "the daemon cannot be reached";
      }
      this.on.state(false, why);
      await new Promise((done) => { setTimeout(done, this.retryMs); });
      this.retryMs = Math.min(2 * this.retryMs, RETRY_MAX_MS);
    }
  }

  async #connectOnce() {
    const stop = new AbortController();
    let silence = setTimeout(() => stop.abort(), SILENCE_MS);
    const more = this.lastId ? { "Last-Event-ID": this.lastId } : {};
    try {
      const answer = await fetch("v1/events", { headers: headers(more), cache: "no-store", signal: stop.signal });
      if (answer.status === 401) throw new NeedsToken();
      if (!answer.ok) throw new Error(String(answer.status));
      this.retryMs = RETRY_FIRST_MS;
      this.on.state(true, "");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let held = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => stop.abort(), SILENCE_MS);
        held += value;
        const blocks = held.split("\n\n");
        held = blocks.pop();
        blocks.forEach((block) => this.#message(block));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  #message(block) {
    let kind = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) this.lastId = line.slice(4);
      else if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (!data) return;
    const value = JSON.parse(data);
    if (kind === "event") this.on.event(value);
    else if (kind === "status") this.on.status(value);
    else if (kind === "reset") this.on.reset();
  }
}
