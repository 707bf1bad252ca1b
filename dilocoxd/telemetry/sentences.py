"""What an event means, in a sentence for people; events without one are shown as name and values. Pure.

Peer ids are put in as they are: whoever shows the sentence puts names in their place.
"""

from collections.abc import Callable
from typing import Any, Final

from dilocoxd.answers.words import in_bytes, in_time, plural
from dilocoxd.telemetry import catalogue as c
from dilocoxd.telemetry.cluster import FeedbackMissing
from dilocoxd.telemetry.suspicions import EntryTakenBack, StateSpoiled, StateTrained


def _url(event: c.ApiStarted) -> str:
    return f"http://[{event.host}]:{event.port}" if ":" in event.host else f"http://{event.host}:{event.port}"


def _joined(event: c.SwarmJoined) -> str:
    return f"in touch with {plural(event.num_live, 'site')}, first {event.through} ({in_time(event.waited_s)})"


def _caught_up(event: c.RecoveryEnded) -> str:
    took = f"{in_bytes(event.bytes_received)} in {in_time(event.recovery_s)}"
    return f"caught up: outer step {event.height} ({took})"


def _stopped(event: c.DaemonStopped) -> str:
    failed = f", exit code {event.exit_code}" if event.exit_code else ""
    return f"the daemon has ended ({event.reason}{failed})"


_SENTENCES: Final[dict[type[c.Event], Callable[[Any], str]]] = {
    c.DaemonStopped: _stopped,
    c.RunCompleted: lambda e: f"the run is complete: {e.tokens:,} tokens in {plural(e.height, 'round')}",
    c.SwarmJoined: _joined,
    c.PeerFound: lambda e: f"{e.peer} is a site of this run",
    c.PeerLost: lambda e: f"{e.peer} does not answer any more, for {in_time(e.silent_s)}: {e.reason}",
    c.PeerLeft: lambda e: f"{e.peer} said goodbye",
    c.PeerEvicted: lambda e: f"{e.peer} was evicted from the run",
    c.AuthoritiesChanged: lambda e: f"list {e.number} of the authorities is in force, decided by {e.decided_by}",
    c.PeerReinstated: lambda e: f"{e.peer} is let in again: the members evicted it on a chain that was given up",
    c.RoundAbandoned: lambda e: f"round {e.round}: attempt {e.attempt} was given up: {e.reason}",
    c.RecoveryStarted: lambda e: f"catching up from {e.own_height} to {e.target_height}: {e.reason}",
    c.RecoveryEnded: _caught_up,
    c.ProfileWritten: lambda e: f"profile of {plural(e.steps, 'inner step')} written to {e.folder}",
    c.ProfileFailed: lambda e: f"no profile, training goes on: {e.reason}",
    c.SitePaused: lambda e: f"paused: {e.reason}",
    c.SiteResumed: lambda e: "training goes on",
    FeedbackMissing: lambda e: f"the error feedback of {e.values:,} values was lost, and starts at zero: {e.reason}",
    EntryTakenBack: lambda e: f"entry {e.round} spoiled the model and was taken back by a majority",
    StateSpoiled: lambda e: f"the shared state of round {e.round} gives no finite loss; the trainers wait for another",
    StateTrained: lambda e: f"the shared state of round {e.round} gives a finite loss; the trainers go on",
    c.ApiStarted: lambda e: f"dashboard and API at {_url(e)}",
    c.AlertRaised: lambda e: f"alert {e.code}: {e.text}; {e.remedy}",
    c.AlertCleared: lambda e: f"alert {e.code} is over",
}


def sentence(event: c.Event) -> str:
    """The sentence, or empty."""
    tell = _SENTENCES.get(type(event))
    return tell(event) if tell is not None else ""
