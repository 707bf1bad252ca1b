"""Who reduced which segment in which round: from the sites' recordings, played again (`dilocoxd replay`).

The log does not name owners, and need not: a result is the same whoever reduced it, but for what the owner still owed
the mean. So whoever computes a run with error feedback again needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dilocoxd.cli.replay import pairs
from dilocoxd.rounds.commands import SettleContribution
from dilocoxd.rounds.transcript import Opening, Player, decode
from dilocoxd.store.recording import read_records, recordings
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.identity import is_signed_by_its_peer

Owners = dict[int, dict[int, str]]
"""Round -> segment -> peer id."""


def settlements(run_dir: Path) -> tuple[list[SettleContribution], int]:
    """What a stopped site's round machine ordered in its only life about its own contributions; number of segments."""
    (path,) = recordings(RunDir(run_dir).logs)
    records = (decode(data) for data in read_records(path))
    opening = next(records)
    assert isinstance(opening, Opening)
    player = Player(opening, is_signed_by_its_peer)
    found = []
    for given, outcome in pairs(records):
        ordered, is_same = player.play(given, outcome)
        assert is_same, f"{path}: played again, the machine ordered something else"
        found += [command for command in ordered if isinstance(command, SettleContribution)]
    return found, opening.shape.num_segments


def owners_of(members: Mapping[str, Path]) -> Owners:
    """By run directory of each peer, for rounds that the recordings tell everything about: before a contribution came
    to nothing, and not settled by a recovery."""
    owners: Owners = {}
    lost = []
    num_segments = 0
    for peer, run_dir in members.items():
        found, num_segments = settlements(run_dir)
        for settled in found:
            if settled.is_included:
                owners.setdefault(settled.round, {}).update(dict.fromkeys((o.segment for o in settled.owned), peer))
            else:
                lost.append(settled.round)
    first_lost = min(lost, default=max(owners, default=0) + 1)
    return {n: owned for n, owned in owners.items() if n < first_lost and len(owned) == num_segments}
