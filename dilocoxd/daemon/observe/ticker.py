"""Decides which line says how it goes, and when, to somebody who watches the terminal. Pure.

One line for each committed round, at most one a second; within long rounds, and while the site does not train, one at
every change and one every 8 s; in the first minute every 3 s, and while it stops every 2 s. Never 10 s of silence; what
is still waited for is told again with how long that has taken.
"""

import math
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.rounds import RoundRow
from dilocoxd.answers.status import Status
from dilocoxd.answers.words import about, figure, in_bytes, in_time, time_left, tokens_per_s

LINE_EVERY_S: Final = 8.0
"""With the time between two looks, also late ones, less than 10 s."""
EARLY_S: Final = 60.0
EARLY_EVERY_S: Final = 3.0
"""In the first minute a person looks whether it works."""
STOPPING_EVERY_S: Final = 1.5
"""Somebody has just asked for the end: with the time between two looks no more than 2 s."""
LOOK_S: Final = 1.0
LOOK_STOPPING_S: Final = 0.25
CHANGE_S: Final = 2.0
"""A change of what is waited for is told no sooner after the last line than this: much is over within it."""
ROUND_S: Final = 1.0
NOBODY_READY: Final = "a site to finish its phase"
"""What the round machine waits for while all sites train. A site that does so itself waits for nothing."""
_UNSETTLED: Final = -math.inf


@dataclass(slots=True)
class Ticker:
    """`look` again after `look_again_s`; each line once."""

    _said_at: float = _UNSETTLED
    _said: str = ""
    """State and wait of the last line that was not about a round."""
    _line: str = ""
    """The last line that was not about a round, without its time."""
    _began: float | None = None
    _state: str = ""
    _state_since: float = _UNSETTLED
    _round: int | None = None
    """Newest round that was told, or that was there at the first look."""

    def look(self, status: Status, newest: RoundRow | None, now: float) -> str:
        """The line that is due, or empty. `newest`: the committed round of the highest number."""
        if self._began is None:
            self._began = now
        is_of_before = newest is not None and newest.committed_at < status.started_at
        if self._round is None or is_of_before:  # what an earlier life committed is remembered, and no news
            self._round = newest.round if newest is not None else -1
        state = f"{status.state}/{_stem(status.waiting_for)}"
        if state != self._state:
            self._state, self._state_since = state, now
        silent_s = now - self._said_at
        if newest is not None and newest.round > self._round:
            if silent_s < ROUND_S:
                return ""
            self._round = newest.round
            return self._say(round_line(status, newest), now)
        change_s = 0.0 if status.state == "leaving" else CHANGE_S
        has_changed = state != self._said and status.state != "training" and silent_s >= change_s
        if not has_changed and silent_s < self._every_s(status, now - self._began):
            return ""
        self._said = state
        line = step_line(status)
        is_wait = bool(_wait(status)) or status.state != "training"
        return self._say(self._with_time(line, now) if is_wait else line, now)

    def _every_s(self, status: Status, run_s: float) -> float:
        """Longest silence."""
        if status.state == "leaving":
            return STOPPING_EVERY_S
        return EARLY_EVERY_S if run_s < EARLY_S else LINE_EVERY_S

    def _with_time(self, line: str, now: float) -> str:
        """Whoever reads the same twice wants to know whether it hangs."""
        is_again, self._line = line == self._line, line
        seconds = now - self._state_since
        return f"{line} ({_seconds(seconds)} so far)" if is_again else line

    def _say(self, line: str, now: float) -> str:
        self._said_at = now
        return line


def look_again_s(status: Status) -> float:
    """When to look next: soon while it stops."""
    return LOOK_STOPPING_S if status.state == "leaving" else LOOK_S


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else in_time(seconds)


def _stem(waiting_for: str) -> str:
    """What is waited for, without how far it is: that changes all the time."""
    return waiting_for.partition("(")[0]


def round_line(status: Status, row: RoundRow) -> str:
    """A committed round: sites in it, losses, speed, when the next one or the end comes, bytes.

    Narrow terminals leave out parts, the later ones first: what is asked for most stands before the bytes.
    """
    num, peers, progress = len(row.contributors), status.peers, status.progress
    usual = max(num, peers.took_part_last_round + peers.missed_last_round)
    parts = [f"round {row.round}", f"{num}/{usual} sites", losses(status), speed(status)]
    parts.append("" if row.is_contributor else "without us")
    end_s = progress.end_s if progress.stop_after_tokens else None
    parts.append(f"ends in ~{about(end_s)}" if end_s else "")
    parts.append(f"next in ~{about(progress.round_s)}" if progress.round_s is not None else "")
    if row.bytes_sent is not None and row.bytes_received is not None:
        parts.append(f"{in_bytes(row.bytes_sent)} up, {in_bytes(row.bytes_received)} down")
    return "  ".join(filter(None, [*parts, "" if end_s else time_left(progress)]))


def step_line(status: Status) -> str:
    """Where the inner steps are, in a round that takes long; what is waited for belongs to the first part, which no
    terminal leaves out."""
    phase = status.phase
    if status.state != "training" or phase.phase is None or not phase.inner_steps:
        return wait_line(status)
    left_s = max(0, phase.inner_steps - phase.inner_step) * phase.step_seconds
    where, wait = (f"round {status.height}", f"step {phase.inner_step}/{phase.inner_steps}"), _wait(status)
    parts = [f"{', '.join(where)}: waits for {wait}" if wait else "  ".join(where), losses(status)]
    parts += [f"exchange in ~{about(left_s)}" if left_s else "", speed(status), time_left(status.progress)]
    return "  ".join(filter(None, parts))


def _wait(status: Status) -> str:
    phase = status.phase
    is_at_work = status.state == "training" and 0 < phase.inner_step < phase.inner_steps
    return "" if is_at_work and status.waiting_for == NOBODY_READY else status.waiting_for


def wait_line(status: Status) -> str:
    """What the site does instead of training, and what it waits for."""
    state = "stopping" if status.state == "leaving" else status.state.replace("_", " ")
    return f"{state}: waits for {status.waiting_for}" if status.waiting_for else state


def losses(status: Status) -> str:
    """Newest inner loss, and of the shared model on held-out text."""
    found = status.losses
    if found.inner is None and found.validation is None:
        return ""
    return f"loss {figure(found.inner, '.2f')} (val {figure(found.validation, '.2f')})"


def speed(status: Status) -> str:
    """Of this site."""
    value = status.progress.tokens_per_s
    return tokens_per_s(value) if value is not None else ""
