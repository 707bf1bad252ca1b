"""A large swarm with a long history, served by the daemon's own code: view, journal, membership and HTTP server are the
real ones; only workers and network are left out. Names, ids and losses are made by formulas.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import base58

from dilocoxd.answers.rounds import Contributor, RoundRow, RoundTimes
from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.telemetry.catalogue import RoundCommitted
from dilocoxd.wire.messages import PROTOCOL_MAJOR
from dilocoxd.wire.records import PeerRecord
from tests.unit.daemon.test_operator_side import Recorded

Answer = TypeVar("Answer")
ROUND_S: Final = 60.0
STEPS: Final = 34
TOKENS: Final = 34 * 4096
STATES: Final = {7: "catching_up", 19: "catching_up", 23: "paused", 31: "preparing", 40: "left"}
"""What the site of this number does; all others train."""
SILENT: Final = frozenset({11, 12, 44})
"""Numbers of sites that are not heard of any more."""
TURNS: Final = 37
TOWNS: Final = ("ams", "ber", "bog", "cpt", "del", "hel", "lis", "nbo", "osl", "sfo", "syd", "tyo")
PATIENCE_S: Final = 60
HEARTBEAT_S: Final = 3.0


def peer_id(number: int) -> PeerId:
    """46 letters, as real ones have."""
    return PeerId(base58.b58encode(b"\x12\x20" + hashlib.sha256(b"site %d" % number).digest()).decode())


def site_name(number: int) -> str:
    return f"{TOWNS[number % len(TOWNS)]}-gpu-{number:02d}"


def state_of(number: int) -> str:
    return STATES.get(number, "training")


def loss_at(step: float, floor: float = 2.1) -> float:
    return floor + 7.0 / (1.0 + step / 900) ** 0.7


class BigSwarm:
    """The API of one site of a swarm, on a loop in a thread."""

    def __init__(self, folder: Path, *, num_sites: int, num_rounds: int) -> None:
        self._folder = folder
        self._num_sites, self._num_rounds = num_sites, num_rounds
        self._is_up = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="big swarm")
        self.port = 0
        self._sequence, self._heard_at = 0, 0.0

    def __enter__(self) -> BigSwarm:
        self._thread.start()
        assert self._is_up.wait(PATIENCE_S)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        world = Recorded(self._folder)
        self._fill_members(world)
        self._fill_history(world)
        section, view = ApiSection(port=0, requests_per_s_max=1000), world.daemon.view
        view.status = self._heard_first(world, view.status)  # type: ignore[method-assign]
        view.peers = self._heard_first(world, view.peers)  # type: ignore[method-assign]
        async with serve_api(view, world.control, section, "0123456789abcdef0123") as (_, self.port):
            self._is_up.set()
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._stop.wait()
                self._hear_of_all(world)

    def _heard_first(self, world: Recorded, answer: Callable[[], Answer]) -> Callable[[], Answer]:
        """All are heard of before anybody is told who is there, however long this process stood still."""

        def asked() -> Answer:
            if time.monotonic() - self._heard_at > HEARTBEAT_S:
                self._hear_of_all(world)
            return answer()

        return asked

    def _fill_members(self, world: Recorded) -> None:
        unix = time.time()
        self._hear_of_all(world)
        for number in range(1, self._num_sites):
            for back in range(600, -1, -3):
                is_silent = number in SILENT and back < 400
                world.daemon.journal.others.look(
                    peer_id(number), "silent" if is_silent else state_of(number), unix - back
                )

    def _hear_of_all(self, world: Recorded) -> None:
        """A heartbeat of each site; those that are silent are known from the disk alone."""
        self._sequence, self._heard_at = self._sequence + 1, time.monotonic()
        sequence = self._sequence
        for number in range(1, self._num_sites):
            record = self._record(world, number, sequence)
            if number not in SILENT or sequence == 1:
                world.daemon.membership.on_record(record, is_own_word=number not in SILENT)

    def _record(self, world: Recorded, number: int, sequence: int) -> PeerRecord:
        state, steps_per_s = state_of(number), 1 / (1 + number % 4)
        return PeerRecord(
            peer=peer_id(number), run_id=world.daemon.run_id, protocol_major=PROTOCOL_MAJOR, protocol_minor=0,
            incarnation=1, sequence=sequence, unix_ms=int(time.time() * 1000), ttl_ms=60_000, state=state,
            addresses=(f"/ip4/198.51.100.{number}/tcp/31337",), chain_head=Digest(b"h" * 32),
            chain_height=self._num_rounds - (7 if state == "catching_up" else 0), chain_weight=1,
            state_digest=Digest(b"s" * 32), contributed_round=self._num_rounds - 1,
            milli_steps_per_s=round(1000 * steps_per_s),
            tokens_per_s=round(4096 * steps_per_s) if state == "training" else 0,
            upload_bytes_per_s=12_500_000, name=site_name(number),
        )  # fmt: skip

    def _fill_history(self, world: Recorded) -> None:
        daemon, journal = world.daemon, world.daemon.journal
        start = time.time() - self._num_rounds * ROUND_S
        sites = [daemon.me, *(peer_id(number) for number in range(1, self._num_sites))]

        @functools.cache
        def there(turn: int, is_late: bool) -> tuple[Contributor, ...]:
            """All but those whose turn it is to miss a round."""
            return tuple(
                Contributor(peer=peer, phase=turn, tokens=TOKENS, inner_steps=STEPS, base_round=turn)
                for number, peer in enumerate(sites)
                if (turn + number) % TURNS and not (number in SILENT and is_late)
            )

        for index in range(self._num_rounds):
            contributors = there(index % TURNS, index > self._num_rounds - 15)
            at = start + (index + 1) * ROUND_S
            journal.keep(
                RoundRow(
                    round=index, attempts=1 + (index % 50 == 0), coordinator=contributors[0].peer,
                    contributors=contributors, is_contributor=True,
                    entry_hash=hashlib.sha256(b"%d" % index).hexdigest(), bytes_sent=1_900_000 + index % 7000,
                    bytes_received=2_700_000 + index % 9000, next_inner_steps=STEPS, trainer_idle_s=0.2,
                    started_at=at - ROUND_S, committed_at=at, applied_at=at + 1.0,
                    times=RoundTimes(
                        gather_s=3.0, exchange_s=22.0 + 4 * math.sin(index / 40), vote_s=0.8, persist_s=0.1, apply_s=0.9
                    ),
                    failures=("attempt 0: a site vanished during the exchange",) if index % 50 == 0 else (),
                )
            )  # fmt: skip
            journal.validation_losses.add((at, index, loss_at(index * STEPS / 50) + 0.02 * math.sin(index)))
        for step in range(0, self._num_rounds * STEPS, max(1, self._num_rounds * STEPS // 20_000)):
            noise = 0.25 * math.sin(step * 12.9898) * math.cos(step * 78.233)
            journal.inner_losses.add((start + step * ROUND_S / STEPS, step, loss_at(step / 50) + noise))
        self._tell_losses(world, sites)
        self._fill_present(world, sites)

    def _tell_losses(self, world: Recorded, sites: list[PeerId]) -> None:
        """As answers to `losses/<phase>` would be kept: a seventh of the sites does not tell any."""
        journal = world.daemon.journal
        for number, peer in enumerate(sites[1:], 1):
            if number % 7 == 0:
                continue
            rounds = [row for row in journal.rounds.values() if (row.round + number) % TURNS and row.committed_at]
            told = [
                (row.committed_at, row.round, loss_at(row.round * STEPS / 50, 2.0 + number / 100)) for row in rounds
            ]
            journal.other_losses.add(peer, list(enumerate(told)))

    def _fill_present(self, world: Recorded, sites: list[PeerId]) -> None:
        daemon, journal, unix = world.daemon, world.daemon.journal, time.time()
        for back in range(10, 0, -1):
            began, index = unix - back * ROUND_S, self._num_rounds - back
            journal.add_span("compute", began, began + ROUND_S - 2, index)
            journal.add_span("idle", began + ROUND_S - 2, began + ROUND_S, index)
            journal.add_span("exchange", began + 5, began + 27, index)
        journal.row(self._num_rounds)
        daemon.ledger.chain = replace(
            daemon.ledger.chain, height=RoundIndex(self._num_rounds), head=Digest(b"h" * 32),
            weight=self._num_rounds * len(sites) * TOKENS, inner_steps=STEPS,
            recent=(frozenset(one.peer for one in journal.rounds[self._num_rounds - 1].contributors),),  # type: ignore[arg-type]
        )  # fmt: skip
        daemon.lifecycle.enter("training")
        for index in range(self._num_rounds - 40, self._num_rounds):
            daemon.opened.events.emit(
                RoundCommitted(
                    round=index, attempt=0, entry_hash=journal.rounds[index].entry_hash, contributors=tuple(sites),
                    bytes_sent=1_900_000, bytes_received=2_700_000, exchange_s=22.0,
                )
            )  # fmt: skip
        daemon.alerts.alert("disk_low", "3.1 GB left, a snapshot needs 2.9 GB")
