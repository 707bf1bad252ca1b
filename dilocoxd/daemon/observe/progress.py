"""How far the run is, how fast, and how long it still takes. Pure: values in, one answer out.

Everything that says tokens/s, time left or sums over the swarm asks here (status, dashboard, terminal).
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.peers import Peer
from dilocoxd.answers.progress import RunProgress, StageSpeeds
from dilocoxd.answers.rounds import RoundRow
from dilocoxd.wire.local.trainer import StageTimes

PACE_ROUNDS: Final = 16
"""The pace is the median of so many newest rounds: one long wait does not move it."""
FLOPS_PER_PARAMETER: Final = 6
"""Multiplications and additions for one token, forward and backward. Source: arXiv 2001.08361, section 2.1."""
FLOPS_PER_FROZEN_PARAMETER: Final = 4
"""Of a model under an adapter: 2 forward, 2 for the gradient of what goes in; its own gradient is not formed."""


@dataclass(frozen=True, slots=True)
class OwnPace:
    """What this site knows of itself; None: not known."""

    state: str
    """As in GET /v1/status."""
    is_training: bool
    step_seconds: float
    """0: no step yet."""
    tokens_per_step: int
    learning_rate: float | None
    gradient_norm: float | None
    memory_bytes: int | None
    data_seconds: float | None = None
    bubble: float | None = None
    stages: StageTimes | None = None
    skipped_steps: int = 0
    rank_memory_bytes: tuple[int, ...] = ()
    peak_flops_per_s: float = 0.0
    """Of all devices of the site together; 0: not known."""
    flops_per_token: float | None = None
    """Useful arithmetic of the whole model (`flops_per_token`); None: not known."""


@dataclass(frozen=True, slots=True)
class SchedulePlace:
    """The run's place on its schedule."""

    steps_done: int | None
    steps_total: int
    inner_steps: int
    """H: what one more round adds."""
    chain_tokens: int
    stop_after_tokens: int = 0
    """0: the run has no end."""


def progress(own: OwnPace, schedule: SchedulePlace, peers: Sequence[Peer], rounds: Iterable[RoundRow]) -> RunProgress:
    """All of it. `rounds`: the newest rows, in order; those that are not committed do not count."""
    rounds = list(rounds)
    pace = round_seconds(rounds)
    speed = own.tokens_per_step / own.step_seconds if own.is_training and own.step_seconds > 0 else None
    others = [peer.tokens_per_s for peer in peers if peer.is_live and peer.tokens_per_s and peer.state == "training"]
    known = [one for one in (speed, *others) if one is not None]
    useful = own.flops_per_token * speed if own.flops_per_token and speed else None
    return RunProgress(
        steps_done=schedule.steps_done,
        steps_total=schedule.steps_total,
        eta_s=time_left(schedule, pace, own.step_seconds),
        stop_after_tokens=schedule.stop_after_tokens,
        end_s=time_to_end(schedule, pace, rounds),
        round_s=pace,
        tokens_per_s=speed,
        swarm_tokens_per_s=float(sum(known)) if known else None,
        swarm_tokens=schedule.chain_tokens,
        learning_rate=own.learning_rate,
        gradient_norm=own.gradient_norm,
        model_flops_per_s=useful,
        mfu=useful / own.peak_flops_per_s if useful is not None and own.peak_flops_per_s else None,
        data_s=own.data_seconds,
        bubble=own.bubble,
        stages=_stages(own.stages),
        skipped_steps=own.skipped_steps,
        memory_bytes=own.memory_bytes,
        rank_memory_bytes=own.rank_memory_bytes,
        sites=site_counts(own.state, peers),
    )


def _stages(measured: StageTimes | None) -> StageSpeeds | None:
    if measured is None:
        return None
    saves = measured.saves if measured.layers else None
    return StageSpeeds(compute_s=measured.seconds, faster_layers=measured.layers, faster_saves=saves)


def flops_per_token(model_kind: str, trained: int | None, frozen: int) -> float | None:
    """Useful arithmetic for one token, attention not counted; None: not known.

    Args:
        trained: parameters that are trained; None: not known yet.
        frozen: parameters under an adapter, 0 without one.
    Of a module of somebody's own neither the parameters' use in a step nor the meaning of a token is known.
    """
    if model_kind == "external" or not trained:
        return None
    return float(FLOPS_PER_PARAMETER * trained + FLOPS_PER_FROZEN_PARAMETER * frozen)


def round_seconds(rounds: Iterable[RoundRow]) -> float | None:
    """Median seconds from one committed round to the next; None before there are two."""
    times = [row.committed_at for row in rounds if row.committed_at > 0][-PACE_ROUNDS - 1 :]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return statistics.median(gaps) if gaps else None


def time_left(schedule: SchedulePlace, pace_s: float | None, step_seconds: float) -> float | None:
    """Seconds to the end of the schedule: at the pace of rounds, before there is one at that of inner steps."""
    if schedule.steps_done is None:
        return None
    left = max(0, schedule.steps_total - schedule.steps_done)
    if left == 0:
        return 0.0
    if pace_s is not None and schedule.inner_steps > 0:
        return left / schedule.inner_steps * pace_s
    return left * step_seconds if step_seconds > 0 else None


def time_to_end(schedule: SchedulePlace, pace_s: float | None, rounds: Iterable[RoundRow]) -> float | None:
    """Seconds until the chain holds the tokens that end the run, at the pace of the newest rounds."""
    if not schedule.stop_after_tokens:
        return None
    left = max(0, schedule.stop_after_tokens - schedule.chain_tokens)
    if left == 0:
        return 0.0
    counts = [sum(one.tokens for one in row.contributors) for row in rounds if row.committed_at > 0][-PACE_ROUNDS:]
    each = statistics.median(counts) if counts else 0
    return left / each * pace_s if each and pace_s is not None else None


def site_counts(own_state: str, peers: Iterable[Peer]) -> dict[str, int]:
    """State -> number of sites, most first, ours included."""
    counts = Counter([own_state, *(peer_state(peer) for peer in peers)])
    return dict(counts.most_common())


def peer_state(peer: Peer) -> str:
    """What a peer says it does; `left` if it said goodbye, `dead` if it is silent."""
    if peer.state in ("left", "leaving"):
        return peer.state if peer.is_live else "left"
    return peer.state if peer.is_live else "dead"
