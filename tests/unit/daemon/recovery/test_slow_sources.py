"""Who trickles an answer of a recovery is given up by what has come of it, not after the time of the largest answer."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.peers.serving import write_chain
from dilocoxd.daemon.recovery.questions import BYTES_PER_S_MIN, START_S, Questions
from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.recovery import interface as r
from dilocoxd.store.log import EntryLog
from dilocoxd.swarm.streams.fetch import OnBytes
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.frames import PIECE_BYTES
from tests.unit.daemon.chain.chain_maker import LENGTHS, chain
from tests.unit.daemon.recovery.test_chain_fetch import log_of

DONOR = PeerId("D")


@dataclass
class Dripping:
    """Gives the chain of a log in `pieces` of `num_bytes`, each after `seconds` of the loop's clock, which stands
    otherwise."""

    log: EntryLog
    seconds: float
    num_bytes: int
    pieces: int
    took_s: float = field(default=0.0, init=False)

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int, on_bytes: OnBytes) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.time = lambda: began + self.took_s  # type: ignore[method-assign]
        for _ in range(self.pieces):
            self.took_s += self.seconds
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # a time-out that is over ends the answer here
            on_bytes(self.num_bytes)
        return write_chain(self.log, 0)

    async def fetch_region(self, peer: PeerId, resource: str, target: Region, *, on_bytes: OnBytes) -> None:
        await self.fetch_bytes(peer, resource, bytes_max=target.length, on_bytes=on_bytes)


def answer_of(folder: Path, seconds: float, num_bytes: int, pieces: int) -> tuple[r.RecoveryEvent, float]:
    """What becomes of a question about its entries, and after how long."""
    client = Dripping(log_of(folder, chain(3)), seconds, num_bytes, pieces)

    async def ask() -> r.RecoveryEvent:
        async with asyncio.TaskGroup() as group:
            ledger = cast(Any, SimpleNamespace())
            questions = Questions(group, cast(Any, client), ledger, folder)
            questions.ask(r.AskEntries(1, DONOR, 0))
            return await questions.answers.get()

    return asyncio.run(ask()), client.took_s


@pytest.mark.parametrize(("seconds", "num_bytes"), [(14.0, 1), (20.0, PIECE_BYTES), (61.0, 0)])
def test_source_that_trickles_entries_is_given_up_and_another_asked(
    tmp_path: Path, seconds: float, num_bytes: int
) -> None:
    """Each piece comes within the time of a frame (S3), and the answer would take minutes."""
    answer, took_s = answer_of(tmp_path, seconds, num_bytes, pieces=100)
    assert isinstance(answer, r.AskFailed) and not answer.is_final and not answer.is_wrong
    assert DONOR in answer.reason and "too little in time" in answer.reason
    rate = num_bytes / seconds
    assert took_s <= START_S / (1 - rate / BYTES_PER_S_MIN) + seconds < r.RecoveryLimits().patience_s(8 << 20)


def test_source_that_is_slow_but_steady_is_waited_for(tmp_path: Path) -> None:
    seconds = 0.9 * PIECE_BYTES / BYTES_PER_S_MIN
    answer, took_s = answer_of(tmp_path, seconds, PIECE_BYTES, pieces=32)
    assert isinstance(answer, r.EntriesCame) and len(answer.entries) == 3
    assert 3 * START_S < took_s < r.RecoveryLimits().patience_s(8 << 20)


def test_checking_a_large_payload_is_not_held_against_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing tens of GB takes longer than a source may be silent."""
    client = Dripping(log_of(tmp_path, chain(1)), 1.0, PIECE_BYTES, pieces=1)
    signed = client.log.entry(RoundIndex(0))

    def check(*_: Any) -> None:
        client.took_s += 10 * START_S

    monkeypatch.setattr("dilocoxd.daemon.recovery.questions.check_payload", check)
    maps = SimpleNamespace(payloads=PayloadMaps({0: (LENGTHS,)}))

    async def ask() -> r.RecoveryEvent:
        async with asyncio.TaskGroup() as group:
            questions = Questions(group, cast(Any, client), cast(Any, maps), tmp_path)
            questions.ask(r.AskPayload(1, DONOR, signed))
            answer = await questions.answers.get()
            questions.close()
            return answer

    assert asyncio.run(ask()) == r.PayloadCame(1)
