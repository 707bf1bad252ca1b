"""Who contributed to our chain, as votes on evictions are counted by (protocol M7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.ids import Digest, PeerId
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.entry import Entry


@dataclass
class Named:
    peer: PeerId


@dataclass
class Group:
    contributions: tuple[Named, ...]


class Log:
    height = 3

    def hash_at(self, height: int) -> Digest:
        return Digest(bytes([height]) * 32)


def entry(group: str) -> Entry:
    return cast("Entry", Group(tuple(Named(PeerId(peer)) for peer in group)))


def test_roll_follows_the_applied_chain_and_starts_again_after_a_fork() -> None:
    log: Any = Log()
    roll = ContributorRoll(cast("EntryLog", log))
    told: list[int] = []
    roll.on_change = lambda: told.append(roll.height)
    roll.restart([entry("AB"), entry("ABC")])
    roll.extend(entry("AB"))
    assert [roll.of_entry(index) for index in range(3)] == [("A", "B"), ("A", "B", "C"), ("A", "B")]
    assert (roll.last_entry(PeerId("A")), roll.last_entry(PeerId("C")), roll.last_entry(PeerId("Z"))) == (2, 1, None)
    assert roll.of_entry(0) is roll.of_entry(2), "one group is kept once"
    assert roll.hash_at(3) == bytes([3]) * 32 and roll.hash_at(4) is None
    log.height = 1  # the log is rolled back before the state is loaded again
    assert roll.hash_at(2) is None
    assert roll.height == 1, "a vote above it is about entries that we lack, not about another chain"
    roll.restart([entry("A")])
    assert (roll.height, roll.last_entry(PeerId("B")), told) == (1, None, [2, 3, 1])
