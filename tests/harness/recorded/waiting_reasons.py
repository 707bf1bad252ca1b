"""What a site's round machine waited for in a recorded life, and how long it was prepared to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.cli.replay import pairs
from dilocoxd.machines.transcript import Opening, Player, decode
from dilocoxd.store.recording import read_records, recordings
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import is_signed_by


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch in which one round did not go on for one reason."""

    round: int
    reason: str
    seconds: float
    ended_at: float
    """On the daemon's clock, which is that of the machine (CLOCK_MONOTONIC)."""
    grace_s: float
    """How long the machine would wait for stragglers at the end of it, from the phases that it measured."""


def waits(run_dir: Path, life: int = 1) -> Iterator[Wait]:
    """Every wait of the newest life (1) or an earlier one, in order; needs `log.recording_mib` above 0."""
    path = recordings(open_run_dir(run_dir).logs)[-life]
    records = (decode(data) for data in read_records(path))
    opening = next(records)
    assert isinstance(opening, Opening)
    player = Player(opening, is_signed_by)
    since, before = 0.0, (0, "")
    for given, outcome in pairs(records):
        player.play(given, outcome)
        status = player.machine.status
        now = (int(status.round), status.waiting_for)
        if now == before:
            continue
        pace = player.machine.height.book.pace
        yield Wait(*before, given.now - since, given.now, pace.grace(opening.limits))
        since, before = given.now, now
