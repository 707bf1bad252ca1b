"""From which file on this disk the parameters of a round come: a snapshot, or one made again from the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.trained.again.held import HeldFiles
from dilocoxd.trained.anchor import AnchorFile, anchor_of_snapshot
from dilocoxd.trained.chain import ChainLink, read_chain
from dilocoxd.trained.found import StoredRun

Tell = Callable[[str], None]


def averaged_rounds(newest: int, count: int) -> list[int]:
    """The last `count` rounds up to `newest`, ascending. Raises ConfigError if there are not so many."""
    if not 1 <= count <= newest + 1:
        raise ConfigError(
            f"--average {count} is not between 1 and the {newest + 1} states up to round {newest}; give one of those"
        )
    return list(range(newest - count + 1, newest + 1))


def found_anchor(run: StoredRun, rounds: Sequence[int], path: Path, tell: Tell) -> tuple[AnchorFile, list[ChainLink]]:
    """The anchor of a round, or the mean of several (ascending), and the chain up to the entry after it.

    What is in no snapshot is written to `path`. Raises WayGoneError if nothing here leads there, ConfigError
    and StoreError.
    """
    number = rounds[-1]
    if len(rounds) == 1 and (anchor := _of_snapshot(run, number)) is not None:
        chain = _chain(run, number)
        _require_on_chain(anchor, chain)
        return anchor, chain
    if run.run_dir is None or not run.run_dir.log.is_dir():
        raise ConfigError(
            f"{run.snapshots}: has no snapshot of round {number}, and without a log there is no other way to it;"
            f" choose one of rounds {', '.join(map(str, run.rounds()))}"
        )
    chain = _chain(run, number)
    with HeldFiles(run, chain) as held:
        legs = held.ways(rounds)
        # Only here: everything else does without torch.
        from dilocoxd.trained.again.rebuild import Replayer, mean_anchor, rebuilt_anchor

        replayer = Replayer(run.manifest, chain, tell)
        if len(rounds) > 1:
            return mean_anchor(replayer, legs, path), chain
        return rebuilt_anchor(replayer, legs[0], path), chain


def _of_snapshot(run: StoredRun, number: int) -> AnchorFile | None:
    """The anchor of a snapshot, opened; None if there is no snapshot of this round, or no longer."""
    if number not in run.rounds():
        return None
    try:
        return anchor_of_snapshot(run.snapshot(number), run.manifest.run_id)
    except StoreError:
        if number in run.rounds():
            raise
        return None


def _chain(run: StoredRun, number: int) -> list[ChainLink]:
    """Entries 0 to `number`, as far as they are on this disk; without a log (a lone snapshot) none."""
    if run.run_dir is None or not run.run_dir.log.is_dir():
        return []
    found = []
    for link in read_chain(run.run_dir.log, run.manifest):
        found.append(link)
        if link.entry.round == number:
            break
    return found


def _require_on_chain(anchor: AnchorFile, chain: list[ChainLink]) -> None:
    """Raise StoreError if the chain here says that another state has this number."""
    if anchor.round < len(chain) and chain[anchor.round].entry.state_digest.hex() != anchor.state_digest:
        raise StoreError(
            f"{anchor.path.parent} is not the state that entry {anchor.round} names (a fork that lost?); give --round"
            " with another round"
        )
