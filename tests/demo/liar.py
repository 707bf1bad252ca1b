"""The demo's liar: one more site that poisons every contribution, is named and clipped by the others, and evicted."""

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.adversary.daemon import patched
from tests.harness.running.run_directories import link_of
from tests.harness.running.sites import SiteProcess

if TYPE_CHECKING:
    from tests.demo.scenario import Scenario

LIES = {
    "huge": ("lie_huge", "contrary_contribution", "each contribution times -1,000,000"),
    "flipped": ("lie_flipped", "contrary_contribution", "each contribution with the wrong sign"),
}
"""What `--liar` chooses: the patch of tests/adversary, the alert that must name it, and the lie in words."""
HELD_BACK = ("contribution.outsized", "contribution.dropped")
"""Events that tell that a contribution was scaled down far, or left out."""
COMMAND_TIMEOUT_S = 120.0
NAMED_TIMEOUT_S = 180.0
ROUNDS_AFTER_EVICTION = 3
TOGETHER_MIN = 3
"""Contributors that a norm or a direction is compared in: the liar and two others."""


def told(story: "Scenario", liar: SiteProcess) -> None:
    """The liar's part of the story, from its joining to its end. Raises DemoFailedError."""
    patch, code, words = LIES[story.options.liar]
    peer = _joins(story, liar, patch, words)
    story.wait(lambda: _rounds_with(story, peer), f"an outer step with {liar.name}'s contribution", NAMED_TIMEOUT_S)
    story.say(f"{liar.name} lies: {words}; first in outer step {min(_rounds_with(story, peer))}")
    story.wait(lambda: _alerts(story, code, liar.name), f"an alert that names {liar.name}", NAMED_TIMEOUT_S)
    alert, by = _alerts(story, code, liar.name)[0]
    facts: dict[str, Any] = {"lie": words, "alert": code, "alert_text": alert, "named_by": by}
    facts["status_names_it"] = liar.name in _dilocoxd(story, "status", str(story.sites[0].run_dir))
    facts["rounds_until_named"] = len(_rounds_with(story, peer))
    story.say(f"{by} says: {alert}")
    story.wait(story.stand_alike, "equal bits of the honest sites while the liar takes part", NAMED_TIMEOUT_S)
    facts["equal_with_liar_at"] = story.height()
    story.say(f"{_names(story)} hold the same bits at outer step {facts['equal_with_liar_at']}, liar or not")
    facts["evicted_at"] = time.time()
    facts["evicted"] = _dilocoxd(story, "evict", liar.name, str(story.sites[0].run_dir)).strip()
    story.say(f"`dilocoxd evict {liar.name}` at {story.sites[0].name}: {facts['evicted']}")
    # An entry that was under way may still name it.
    height = story.height() + 1
    wanted = height + ROUNDS_AFTER_EVICTION
    story.wait(lambda: story.height() >= wanted, "outer steps after the eviction", NAMED_TIMEOUT_S)
    facts |= {"peer_id": peer, "name": liar.name, "out_since": height, "rounds": _rounds_with(story, peer)}
    facts["clipped_in"] = _clipped_rounds(story.sites[0], peer)
    liar.kill_tree()
    story.facts.liar = facts
    story.say(f"{_names(story)} went on without {liar.name}: outer step {story.height()}")


def _joins(story: "Scenario", liar: SiteProcess, patch: str, words: str) -> str:
    """The liar's peer id, once its daemon answers."""
    through = story.sites[0]
    link = link_of(through.run_dir, str(story.history(through).status["join_address"]))
    story.say(f"{liar.name} joins by {through.name}'s link as well")
    _dilocoxd(story, "join", link, "--no-run", *story.local_options(liar))
    patched(liar, patch, phase_s=None)
    history = story.history(liar)
    story.wait(lambda: bool(history.status.get("peer_id")), f"{liar.name} answers", NAMED_TIMEOUT_S)
    return str(history.status["peer_id"])


def _dilocoxd(story: "Scenario", *arguments: str) -> str:
    """What the command prints. Raises DemoFailedError if it fails."""
    command = [sys.executable, "-m", "dilocoxd", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise story.failed(f"dilocoxd {arguments[0]} did not end within {COMMAND_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise story.failed(f"dilocoxd {arguments[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _rounds_with(story: "Scenario", peer: str) -> list[int]:
    """Committed rounds in which the liar took part, and enough others to compare it with."""
    rows = {k: row for site in story.sites for k, row in story.history(site).rounds.items()}
    named = {k: {c["peer"] for c in row["contributors"]} for k, row in rows.items()}
    return sorted(k for k, peers in named.items() if peer in peers and len(peers) >= TOGETHER_MIN)


def _alerts(story: "Scenario", code: str, name: str) -> list[tuple[str, str]]:
    """Texts of honest sites' alerts that name the liar, each with that site's name."""
    return [
        (str(alert["text"]), site.name)
        for site in story.sites
        for alert in story.history(site).status.get("alerts") or ()
        if alert["code"] == code and name in {part.split(":")[0] for part in str(alert["text"]).split("; ")}
    ]


def _clipped_rounds(site: SiteProcess, peer: str) -> list[int]:
    """Rounds whose results hold less of the liar's contribution than it gave, or nothing, by this site's event log."""
    found = set()
    for line in (site.run_dir / "logs" / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event.get("event") in HELD_BACK and event.get("peer") == peer:
            found.add(int(event["round"]))
    return sorted(found)


def _names(story: "Scenario") -> str:
    return " and ".join(site.name for site in story.sites)
