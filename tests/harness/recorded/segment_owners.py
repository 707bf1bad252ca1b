"""Who reduced which segment in which round: from the sites' recordings, played again (`dilocoxd replay`).

The log does not name owners, and need not: a result is the same whoever reduced it, but for what the owner still owed
the mean. So whoever computes a run with error feedback again needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dilocoxd.cli.replay import pairs
from dilocoxd.ids import RoundIndex
from dilocoxd.machines.round.outputs import AbandonContribution, ApplyEntry
from dilocoxd.machines.transcript import Opening, Player, decode
from dilocoxd.store.recording import read_records, recordings
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.discovery.identity import is_signed_by

Owners = dict[int, dict[int, str]]
"""Round -> segment -> peer id."""


def fates(run_dir: Path) -> tuple[list[ApplyEntry], list[RoundIndex], int]:
    """What a stopped site's round machine applied in its only life, the rounds in which contributions came to nothing,
    and the number of segments."""
    (path,) = recordings(RunDir(run_dir).logs)
    records = (decode(data) for data in read_records(path))
    opening = next(records)
    assert isinstance(opening, Opening)
    player = Player(opening, is_signed_by)
    applied: list[ApplyEntry] = []
    lost: list[RoundIndex] = []
    for given, outcome in pairs(records):
        ordered, is_same = player.play(given, outcome)
        assert is_same, f"{path}: played again, the machine ordered something else"
        applied += [command for command in ordered if isinstance(command, ApplyEntry)]
        if any(isinstance(command, AbandonContribution) for command in ordered):
            lost.append(player.machine.chain.height)
    return applied, lost, opening.shape.num_segments


def owners_of(members: Mapping[str, Path]) -> Owners:
    """By run directory of each peer, for rounds that the recordings tell everything about: before a contribution came
    to nothing, and not settled by a recovery."""
    owners: Owners = {}
    lost: list[RoundIndex] = []
    num_segments = 0
    for peer, run_dir in members.items():
        applied, came_to_nothing, num_segments = fates(run_dir)
        lost += came_to_nothing
        for order in applied:
            if order.settle is not None:
                owned = (one.segment for one in order.settle.owned)
                owners.setdefault(order.round, {}).update(dict.fromkeys(owned, peer))
    first_lost = min(lost, default=max(owners, default=0) + 1)
    return {n: owned for n, owned in owners.items() if n < first_lost and len(owned) == num_segments}
