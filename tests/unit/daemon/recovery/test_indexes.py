"""An index of a snapshot that is not what was asked for is refused and in the status; who may be honest stays."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dilocoxd.daemon.recovery.questions import Questions
from dilocoxd.ids import PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.store.snapshots import ANCHOR_NAME, SnapshotFile, SnapshotIndex
from dilocoxd.swarm.streams.guard import STRIKES_MAX, PeerGuard
from dilocoxd.swarm.streams.rejections import Rejections
from dilocoxd.telemetry.catalogue import Event, InputRejected
from tests.unit.daemon.chain.chain_maker import chain

DONOR = PeerId("D")
NUMEL = 4
ENTRY = chain(3)[2].entry
RIGHT = SnapshotIndex(
    ENTRY.run_id, ENTRY.round, "0" * 64, ENTRY.state_digest.hex(), "", (SnapshotFile(ANCHOR_NAME, 96, ("0" * 64,)),)
)


class Donor:
    """Gives these bytes, whatever it is asked for; a guard counts and bans as a site's own does."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.events: list[Event] = []
        self.guard = PeerGuard(lambda: 0.0)
        self.on_bad = Rejections(self.guard, lambda: 0.0, self.events.append).count

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        return self.data


def answer_to(donor: Donor, folder: Path, question: r.Ask) -> r.RecoveryEvent:
    async def ask() -> r.RecoveryEvent:
        async with asyncio.TaskGroup() as group:
            ledger = cast(Any, SimpleNamespace(payloads=SimpleNamespace(numel=NUMEL)))
            questions = Questions(group, cast(Any, donor), ledger, folder)
            questions.ask(question)
            return await questions.answers.get()

    return asyncio.run(ask())


def test_index_of_the_state_that_the_entry_names_is_an_offer(tmp_path: Path) -> None:
    donor = Donor(RIGHT.encode())
    assert isinstance(answer_to(donor, tmp_path, r.AskOffer(1, DONOR, ENTRY)), r.OfferCame)
    assert not donor.guard.bad_input()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (replace(RIGHT, state_digest="1" * 64).encode(), "other_state"),
        (replace(RIGHT, round=ENTRY.round + 1).encode(), "malformed"),
        (replace(RIGHT, run_id="another").encode(), "malformed"),
        (replace(RIGHT, files=(SnapshotFile(ANCHOR_NAME, 1 << 30, ("0" * 64,) * 256),)).encode(), "out_of_range"),
        (RIGHT.encode()[:-9], "malformed"),
        (b"", "malformed"),
    ],
)
def test_index_of_something_else_is_counted_and_told(tmp_path: Path, data: bytes, code: str) -> None:
    donor = Donor(data)
    answer = answer_to(donor, tmp_path, r.AskOffer(1, DONOR, ENTRY))
    assert isinstance(answer, r.AskFailed)
    assert (answer.is_final, answer.is_wrong) == (True, True)
    assert donor.guard.bad_input() == {DONOR: {code: 1}}
    (event,) = donor.events
    assert isinstance(event, InputRejected)
    assert (event.peer, event.code) == (DONOR, code)


@pytest.mark.parametrize(("digest", "is_banned"), [("1" * 64, False), ("x", True)])
def test_who_may_only_be_on_another_branch_is_not_banned(tmp_path: Path, digest: str, is_banned: bool) -> None:
    """A liar could have honest donors banned, with entries that it makes up."""
    donor = Donor(replace(RIGHT, state_digest=digest).encode())
    for number in range(STRIKES_MAX):
        answer_to(donor, tmp_path, r.AskOffer(number, DONOR, ENTRY))
    assert (donor.guard._entry(DONOR).banned_until > 0) is is_banned
    assert sum(donor.guard.bad_input()[DONOR].values()) == STRIKES_MAX


def test_list_that_holds_something_else_than_rounds_is_counted(tmp_path: Path) -> None:
    donor = Donor(b"12\nten\n")
    assert isinstance(answer_to(donor, tmp_path, r.AskSnapshots(1, DONOR)), r.AskFailed)
    assert donor.guard.bad_input() == {DONOR: {"malformed": 1}}
