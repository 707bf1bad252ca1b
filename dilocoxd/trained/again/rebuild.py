"""States between snapshots, and means of several: the outer worker's own code on the snapshot before and the log.

Memory: anchor and optimizer state once, as in the outer worker; what comes out is a file (trained/anchor.py).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import StoreError
from dilocoxd.ids import RoundIndex
from dilocoxd.outerworker.buffers import MappedBuffers, tensor_bytes
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.requests import Worker
from dilocoxd.outerworker.tensor_file import anchor_entries
from dilocoxd.store.durable import write_all
from dilocoxd.store.tensor_header import encode_header
from dilocoxd.trained.again.held import Leg
from dilocoxd.trained.anchor import PIECE_BYTES, AnchorFile
from dilocoxd.trained.chain import ChainLink, check_results
from dilocoxd.wire.local.outer_worker import ApplyResult, LoadState, StateReady
from dilocoxd.wire.local.worker import WorkerAlive, WorkerFailed
from dilocoxd.wire.state_digest import AnchorStream

Tell = Callable[[str], None]


class _Answers:
    """Takes the place of the daemon: keeps the newest answer."""

    def __init__(self) -> None:
        self.newest: Any = None

    def send(self, message: Any) -> None:
        if not isinstance(message, WorkerAlive):
            self.newest = message


class Replayer:
    """One shared state in memory, moved forward along the log."""

    def __init__(self, manifest: Manifest, chain: Sequence[ChainLink], tell: Tell) -> None:
        """`chain`: from entry 0 on."""
        self._chain = chain
        self._tell = tell
        self.plan: OuterPlan = make_plan(manifest)
        self._answers = _Answers()
        maps = {buffer.name: mmap.mmap(-1, buffer.size) for buffer in self.plan.described().buffers}
        self._buffers = MappedBuffers(self.plan, maps, {})
        self._worker = Worker(self.plan, self._buffers, Reporter(self._answers))
        self.state: StateReady | None = None

    @property
    def anchor(self) -> Tensor:
        """The parameters of the state, float32 in canonical order; a view."""
        return self._buffers.anchor

    def go_to(self, leg: Leg) -> StateReady:
        """State `leg.number`, checked against the chain. Raises StoreError for files that are damaged."""
        if leg.start is not None:
            self.state = self._ask(LoadState(0, leg.directory))
        assert self.state is not None
        for link in leg.links:
            self._tell(f"entry {link.entry.round} of {leg.number}")
            self._require(self.state, link)
            check_results(link)
            place = (str(link.path), link.record.payload_offset, link.entry.lowrank_r)
            self.state = self._ask(ApplyResult(0, RoundIndex(link.entry.round), *place))
        if leg.number < len(self._chain):
            self._require(self.state, self._chain[leg.number])
        return self.state

    def _require(self, state: StateReady, link: ChainLink) -> None:
        if state.state_digest != link.entry.state_digest:
            raise StoreError(
                f"state {state.round} made again here has digest {state.state_digest.hex()[:16]}, entry"
                f" {link.entry.round} names {link.entry.state_digest.hex()[:16]}, as if another version computed;"
                f" give --round with one below {state.round}, or ask another site"
            )

    def _ask(self, request: Any) -> StateReady:
        self._worker.handle(request)
        answer = self._answers.newest
        if isinstance(answer, WorkerFailed):
            raise StoreError(f"{answer.kind}: {answer.detail}")
        assert isinstance(answer, StateReady)
        return answer


def rebuilt_anchor(replayer: Replayer, leg: Leg, path: Path) -> AnchorFile:
    """The state at its end as a file. Raises StoreError and OSError."""
    state = replayer.go_to(leg)
    return _write(path, replayer.plan, replayer.anchor, int(state.round), state.state_digest.hex())


def mean_anchor(replayer: Replayer, legs: Sequence[Leg], path: Path) -> AnchorFile:
    """The mean of the parameters of the states at their ends, in float32, as a file.

    A running mean, element by element in this order, so that every site gets the same bits.
    """
    mean = torch.zeros_like(replayer.anchor)
    for count, leg in enumerate(legs, 1):
        replayer.go_to(leg)
        for start in range(0, mean.numel(), PIECE_BYTES // 4):
            piece = slice(start, start + PIECE_BYTES // 4)
            mean[piece] += (replayer.anchor[piece] - mean[piece]) / count
    return _write(path, replayer.plan, mean, legs[-1].number, "")


def _write(path: Path, plan: OuterPlan, values: Tensor, number: int, state_digest: str) -> AnchorFile:
    entries = anchor_entries(plan)
    header = encode_header(entries, {"run_id": plan.run_id, "round": str(number)})
    data = tensor_bytes(values)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data, write_all(fd, header, 0))
    finally:
        os.close(fd)
    cuts = tuple(segment.numel for segment in plan.segments)
    hashes = AnchorStream([4 * values for values in cuts])
    hashes.add(data)
    return AnchorFile(path, len(header), tuple(entries), number, hashes.anchor_sha256.hex(), cuts, state_digest)
