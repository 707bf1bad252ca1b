"""Looks at the status every few seconds and says which alerts of telemetry/alerts.py stand. Decides; does no I/O.

Conditions have a memory (how long, since when) and a gap between raising and clearing, so that none flickers.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.answers.nodes import asides_in_words, node_wait
from dilocoxd.answers.peers import Peer
from dilocoxd.answers.progress import StageSpeeds
from dilocoxd.answers.rounds import RoundRow, RoundTimes
from dilocoxd.answers.status import Status
from dilocoxd.answers.words import in_bytes, in_time, plural

LOOK_EVERY_S: Final = 5.0
ALONE_S: Final = 120.0
STALL_ROUNDS: Final = 5.0
STALL_MIN_S: Final = 600.0
LEFT_OUT_ROUNDS: Final = 5
BEHIND_ROUNDS: Final = 3
BEHIND_S: Final = 120.0
IDLE_WINDOW_S: Final = 600.0
IDLE_KNOWN_S: Final = 120.0
IDLE_HIGH: Final = 0.10
IDLE_LOW: Final = 0.05
IDLE_ROUND_S: Final = 60.0
"""Shorter rounds of a site on its own: what each of them costs here is a large part of so little training."""
OTHERS_PARTS: Final = ("gather_s", "exchange_s", "vote_s")
ALL_PARTS: Final = (*OTHERS_PARTS, "form_s", "persist_s", "apply_s")
ATTEMPTS: Final = 5
BAD_INPUTS: Final = 20
KEPT_OUT: Final = ("not_allowed", "evicted")
"""Codes of knocks by those whom an operator keeps out: the remedy was followed, and nothing is left to do."""
RECENT_S: Final = 600.0
BLOCKED_LAG_S: Final = 1.0
BLOCKED_SHOWN_S: Final = 300.0
UNEVEN_S: Final = 60.0
UNEVEN_HIGH: Final = 0.10
"""Part of a step that another cut of the layers would save; below 5% trainers tell of none."""
SHOWN_STAGES: Final = 8
NODE_GONE_S: Final = 5.0
"""A node whose connection ended comes back by itself within a second or two."""
RETOLD: Final = ("node_missing", "node_left_alone")
"""Told again where the text has changed: another node is missing, or one was refused."""
NAMING_ALERTS: Final = ("outsized_contribution", "contrary_contribution", "harmful_contribution")
"""Their texts name sites whose contributions may have spoiled the model."""
DISK_FRACTION: Final = 0.05
DISK_BYTES: Final = 2 << 30
EXPIRE_S: Final = (
    dict.fromkeys(("identity_twice", "peers_json", "digest_mismatch", *NAMING_ALERTS), 600.0)
    | {"fork_below_final": 600.0}  # more than recovery ignores a peer whose branch it did not take (R22)
    | dict.fromkeys(("rival_authorities", "authorities_changed", "harmful_contribution"), 86_400.0)
)
"""Alerts that parts raise again while they are true, and that go when nothing was heard for this long."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the daemon."""

    status: Status
    peers: Sequence[Peer]
    disk_free: int
    disk_total: int
    snapshot_bytes: int
    """Size of the newest snapshot; 0 while there is none."""
    num_dropped: int = 0
    """Values that sinks dropped since the start."""
    rounds: Sequence[RoundRow] = ()
    """The newest ones; they say what trainers waited for."""


class CounterWindow:
    """Values of a counter over the last seconds."""

    def __init__(self, length_s: float, since: float | None = None) -> None:
        """With `since` it is known to have stood at zero then."""
        self._length_s = length_s
        self._values: deque[tuple[float, float]] = deque([] if since is None else [(since, 0.0)])

    def add(self, now: float, value: float) -> None:
        """The counter stands at `value`."""
        self._values.append((now, value))
        while len(self._values) > 1 and self._values[1][0] <= now - self._length_s:
            self._values.popleft()

    @property
    def growth(self) -> float:
        """How much it grew; a restart from zero counts as no growth."""
        return max(0.0, self._values[-1][1] - self._values[0][1])

    @property
    def span_s(self) -> float:
        """How much time that covers."""
        return self._values[-1][0] - self._values[0][0]


@dataclass(slots=True)
class _Rounds:
    """When the height changed, and when we were part of it."""

    height: int = -1
    changed_at: float = 0.0
    usual_s: float = 0.0
    own: int = -1
    height_at_own: int = 0
    has_begun: bool = False
    """A first phase is, or was, trained."""
    had_place: bool = False
    """At the look before it trained, and rounds had a place for it; what went before counts as no missed entry."""


@dataclass(slots=True)
class AlertWatch:
    """`look` gives the text of each watched alert, empty where it does not stand."""

    _since: dict[str, float] = field(default_factory=dict)
    _rounds: _Rounds = field(default_factory=_Rounds)
    _idle: CounterWindow = field(default_factory=lambda: CounterWindow(IDLE_WINDOW_S))
    _busy: CounterWindow = field(default_factory=lambda: CounterWindow(IDLE_WINDOW_S))
    _dropped: CounterWindow = field(default_factory=lambda: CounterWindow(BLOCKED_SHOWN_S))
    _bad: dict[tuple[str, str], CounterWindow] = field(default_factory=dict)
    """By peer and code."""
    _is_idle: bool = False
    _is_uneven: bool = False
    _blocked: tuple[float, float] = (-math.inf, 0.0)
    _raised_at: dict[str, float] = field(default_factory=dict)

    def note_blocked(self, lag_s: float, now: float) -> None:
        """The loop came back late."""
        if lag_s >= BLOCKED_LAG_S:
            self._blocked = (now, lag_s)

    def note_raised(self, code: str, now: float) -> None:
        """Some part raised an alert."""
        self._raised_at[code] = now

    def expired(self, now: float) -> list[str]:
        """Alerts of parts that have not been raised again for long."""
        gone = [c for c, limit_s in EXPIRE_S.items() if c in self._raised_at and now - self._raised_at[c] > limit_s]
        for code in gone:
            del self._raised_at[code]
        return gone

    def look(self, seen: Seen, now: float) -> dict[str, str]:
        """Every watched alert with its text; an empty text: it does not stand."""
        status = seen.status
        is_training = status.state == "training"
        self._rounds.has_begun |= status.phase.phase is not None
        is_at_work = is_training and self._rounds.has_begun  # before, the trainers prepare text and start
        self._follow_rounds(status, now, is_at_work)
        return {
            "alone": self._alone(status, now),
            "round_stalled": self._stalled(status, now) if is_training else "",
            "left_out": self._left_out(status) if is_at_work else "",
            "behind": self._behind(seen, now),
            "trainer_idle": self._trainer_idle(seen, now),
            "stages_uneven": self._stages_uneven(status, now),
            "attempts_failing": _attempts(status),
            "bad_input": self._bad_input(status, now),
            "loss_not_finite": _loss(status),
            "disk_low": _disk(seen),
            "loop_blocked": self._loop(now),
            "sink_dropping": self._sinks(seen, now),
            "worker_p2pd_lost": _p2pd(status),
            "node_missing": self._node_missing(status, now),
            "node_left_alone": "; ".join(asides_in_words(status.nodes)) if status.nodes is not None else "",
        }

    def _lasts(self, code: str, is_so: bool, limit_s: float, now: float) -> bool:
        if not is_so:
            self._since.pop(code, None)
            return False
        return now - self._since.setdefault(code, now) >= limit_s

    def _follow_rounds(self, status: Status, now: float, is_training: bool) -> None:
        rounds, height, own = self._rounds, status.height, status.totals.contributions
        if height != rounds.height or not is_training:
            if 0 <= rounds.height < height and is_training:
                took_s = (now - rounds.changed_at) / (height - rounds.height)
                rounds.usual_s += 0.2 * (took_s - rounds.usual_s) if rounds.usual_s else took_s
            rounds.height, rounds.changed_at = height, now
        has_place = is_training and not status.place_wait
        if own != rounds.own or not (has_place and rounds.had_place):
            rounds.own, rounds.height_at_own = own, height
        rounds.had_place = has_place

    def _alone(self, status: Status, now: float) -> str:
        known, is_out = status.peers.known, any(alert.code == "evicted" for alert in status.alerts)
        if self._lasts("alone", known > 0 and status.peers.live == 0 and not is_out, ALONE_S, now):
            return f"none of {known} known sites has answered for {ALONE_S:g} s or longer"
        return ""

    def _stalled(self, status: Status, now: float) -> str:
        rounds = self._rounds
        waited_s = now - rounds.changed_at
        if waited_s <= max(STALL_MIN_S, STALL_ROUNDS * rounds.usual_s):
            return ""
        why = status.waiting_for or status.round.waiting_for or "nobody says why"
        return f"no entry for more than {max(STALL_MIN_S, STALL_ROUNDS * rounds.usual_s):.0f} s: {why}"

    def _left_out(self, status: Status) -> str:
        missed = status.height - self._rounds.height_at_own
        return f"the last {missed} entries do not contain this site" if missed >= LEFT_OUT_ROUNDS else ""

    def _behind(self, seen: Seen, now: float) -> str:
        height = seen.status.height
        ahead = max((peer.height - height for peer in seen.peers if peer.is_live), default=0)
        if self._lasts("behind", ahead >= BEHIND_ROUNDS, BEHIND_S, now):
            return f"another site is {ahead} outer steps ahead"
        return ""

    def _trainer_idle(self, seen: Seen, now: float) -> str:
        status = seen.status
        self._idle.add(now, status.totals.idle_s)
        self._busy.add(now, status.totals.train_s)
        total = self._idle.growth + self._busy.growth
        share = self._idle.growth / total if total else 0.0
        limit = IDLE_LOW if self._is_idle else IDLE_HIGH
        self._is_idle = share > limit and self._idle.span_s >= IDLE_KNOWN_S
        if not self._is_idle or _is_short_and_alone(seen):
            return ""
        waited = f"the trainers waited {share:.0%} of the last {self._idle.span_s:.0f} s"
        return f"{waited}{waited_for(seen.rounds)}"

    def _stages_uneven(self, status: Status, now: float) -> str:
        stages = status.progress.stages
        saves = stages.faster_saves if stages is not None else None
        if saves is None:
            self._is_uneven = False
        self._is_uneven |= self._lasts("stages_uneven", saves is not None and saves > UNEVEN_HIGH, UNEVEN_S, now)
        return uneven(status.progress.stages, status.phase.step_seconds) if self._is_uneven else ""

    def _node_missing(self, status: Status, now: float) -> str:
        wait = node_wait(status.nodes) if status.state != "leaving" else ""
        return f"it waits for {wait}" if self._lasts("node_missing", bool(wait), NODE_GONE_S, now) else ""

    def _bad_input(self, status: Status, now: float) -> str:
        counts = {
            (peer, code): count
            for peer, kinds in status.bad_input.items()
            for code, count in kinds.items()
            if code not in KEPT_OUT
        }
        self._bad = {key: self._bad.get(key) or CounterWindow(RECENT_S, since=now) for key in counts}
        recent: dict[str, dict[str, float]] = {}
        for (peer, code), window in self._bad.items():
            window.add(now, counts[peer, code])
            recent.setdefault(peer, {})[code] = window.growth
        totals = {peer: sum(kinds.values()) for peer, kinds in recent.items()}
        worst = max(totals, key=lambda peer: totals[peer], default="")
        if totals.get(worst, 0.0) <= BAD_INPUTS:
            return ""
        often = max(recent[worst], key=lambda code: (recent[worst][code], code))
        return f"{totals[worst]:.0f} bad inputs of {worst} within {RECENT_S:.0f} s, most often {often}"

    def _loop(self, now: float) -> str:
        at, lag_s = self._blocked
        return f"the loop came back {lag_s:.1f} s late" if now - at < BLOCKED_SHOWN_S else ""

    def _sinks(self, seen: Seen, now: float) -> str:
        self._dropped.add(now, seen.num_dropped)
        return f"{self._dropped.growth:.0f} values were dropped lately" if self._dropped.growth else ""


def _own(rounds: Iterable[RoundRow]) -> list[RoundRow]:
    return [row for row in rounds if row.committed_at > 0 and row.is_contributor]


def _is_short_and_alone(seen: Seen) -> bool:
    """Nothing went over a link, and only longer phases would make the waiting a smaller part."""
    own, round_s = _own(seen.rounds), seen.status.progress.round_s
    is_alone = bool(own) and all(len(row.contributors) <= 1 for row in own)
    return is_alone and round_s is not None and round_s < IDLE_ROUND_S


def waited_for(rounds: Iterable[RoundRow]) -> str:
    """End of a sentence about trainers that waited: what the newest rounds took their time for; empty without any."""
    own = _own(rounds)
    others = sum(_exchange_s(row.times) for row in own if len(row.contributors) > 1)
    here = sum(_sum(row.times, ALL_PARTS) for row in own) - others
    if not others and not here:
        return ""
    shares = f"{here:.1f} s for work here (forming, summing, storing, applying), {others:.1f} s for the exchange"
    cause = "work here" if here >= others else "the exchange with other sites"
    return f", mostly for {cause}: {plural(len(own), 'round')} took {shares}"


def _exchange_s(times: RoundTimes) -> float:
    """Of a round with others; sums are made here meanwhile."""
    return max(0.0, _sum(times, OTHERS_PARTS) - (times.reduce_s or 0.0))


def _sum(times: RoundTimes, parts: Iterable[str]) -> float:
    return sum(getattr(times, part) or 0.0 for part in parts)


def _attempts(status: Status) -> str:
    found = status.round
    if found.attempt < ATTEMPTS:
        return ""
    return f"round {found.round} is at attempt {found.attempt}"


def _loss(status: Status) -> str:
    """With the sites that other alerts name: whoever reads this must not look for the cause in the learning rate."""
    inner = status.losses.inner
    if inner is None or math.isfinite(inner) or any(alert.code == "state_spoiled" for alert in status.alerts):
        return ""
    return f"the newest inner loss is {inner}{blamed(status.alerts)}"


def blamed(alerts: Iterable[StandingAlert]) -> str:
    """End of a sentence about a bad loss: the sites that other alerts name as its cause; empty if none does."""
    named = "; ".join(alert.text for alert in alerts if alert.code in NAMING_ALERTS)
    return f"; the likely cause is a contribution ({named})" if named else ""


def _disk(seen: Seen) -> str:
    needed = max(DISK_BYTES, 2 * seen.snapshot_bytes)
    if seen.disk_total <= 0 or (seen.disk_free >= needed and seen.disk_free >= DISK_FRACTION * seen.disk_total):
        return ""
    return f"{in_bytes(seen.disk_free)} of {in_bytes(seen.disk_total)} are free on the disk of the run directory"


def uneven(stages: StageSpeeds | None, step_s: float) -> str:
    """Which stage computes how long, and the line of site.toml that would help; empty: none would."""
    if stages is None or stages.faster_saves is None:
        return ""
    times = [*map(in_time, stages.compute_s)]
    if len(times) > SHOWN_STAGES:
        times = [f"between {in_time(min(stages.compute_s))} and {in_time(max(stages.compute_s))}"]
    line = f"`layers_per_stage = {list(stages.faster_layers)}`"
    saves = f"{line} under [parallel] of site.toml would save {stages.faster_saves:.0%} of it"
    return f"of a step of {in_time(step_s)} the stages compute {', '.join(times)}; {saves}"


def _p2pd(status: Status) -> str:
    p2pd = status.workers.get("p2pd")
    return "p2pd is not running" if p2pd is not None and p2pd.state == "lost" else ""
