// The line that others join with: to copy, and as a QR code drawn from the daemon's rows of modules. Where others need an
// invite, the command that makes one on the machine of this site.

import { get } from "../source.js";
import { say } from "../words.js";

const id = (name) => document.getElementById(name);
let isInvite = false;
let inviteLine = "";
const SVG = "http://www.w3.org/2000/svg";

function picture(rows, text) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("viewBox", `0 0 ${rows.length} ${rows.length}`);
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", `QR code of: ${text}`);
  made.setAttribute("shape-rendering", "crispEdges");
  const back = document.createElementNS(SVG, "path");
  back.setAttribute("class", "light");
  back.setAttribute("d", `M0 0h${rows.length}v${rows.length}h-${rows.length}z`);
  const dark = document.createElementNS(SVG, "path");
  dark.setAttribute("class", "dark");
  const runs = rows.flatMap((row, y) => [...row.matchAll(/1+/g)].map((run) => `M${run.index} ${y}h${run[0].length}v1h-${run[0].length}z`));
  dark.setAttribute("d", runs.join(""));
  made.append(back, dark);
  return made;
}

async function copy() {
  const line = id("join-line");
  try {
    await navigator.clipboard.writeText(line.value);
  } catch { // only pages over TLS or on this machine may use the clipboard directly
    line.select();
    if (!document.execCommand("copy")) { say(id("done"), "The browser does not let a page copy: the line is selected, press Ctrl+C."); return; }
  }
  say(id("done"), isInvite ? "The command is copied." : "The join line is copied.");
}

export function startJoin() {
  id("copy").onclick = copy;
  id("join-line").onfocus = () => id("join-line").select();
  id("show-qr").onclick = async () => {
    const isOpen = id("qr-box").hidden;
    id("show-qr").setAttribute("aria-expanded", String(isOpen));
    id("qr-box").hidden = !isOpen;
    if (!isOpen) return;
    const line = await get("v1/join");
    id("qr-box").replaceChildren(picture(line.qr, line.command));
  };
}

function showLine(line) {
  if (id("join-line").value !== line) id("join-line").value = line;
}

export function showJoin({ status }) {
  // A link holds a secret, so the page never has it: it is made on the machine of the site.
  isInvite = status.admission === "invite";
  say(id("join-what"), isInvite ? "On this site's machine, a link for another machine is made with" : "Another machine joins with");
  id("show-qr").hidden = isInvite;
  if (isInvite && !inviteLine) {
    inviteLine = "dilocoxd invite RUN_DIR";
    get("v1/join").then(({ command }) => { // the next status may be long in coming
      inviteLine = command;
      if (isInvite) showLine(command);
    }, () => { inviteLine = ""; });
  }
  showLine(isInvite ? inviteLine : `dilocoxd join ${status.join_address}`);
}
