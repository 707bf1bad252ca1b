"""The shared state in ANCHOR and MOMENTUM: genesis, the outer step of a committed entry, its digests."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch

from dilocoxd.errors import WireError
from dilocoxd.ids import RoundIndex
from dilocoxd.ipc.fault import hold_thread
from dilocoxd.models import init_parameter, init_std
from dilocoxd.outerworker.buffers import tensor_bytes
from dilocoxd.outerworker.core import Core
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.journal import PATH_BYTES_MAX, Operation, Saved
from dilocoxd.outerworker.plan import Table
from dilocoxd.wire import local
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import ApplyEntry, BaseCopied, CopyBase, StateReady


class ChangeGuard(Protocol):
    """Whoever reads the shared state in the background (a snapshot) and must see a segment before it changes."""

    def before_change(self, segment: Segment) -> None: ...


class Digests:
    """Running hashes of anchor and momentum; feed the segments in order."""

    def __init__(self) -> None:
        self._anchor = hashlib.sha256()
        self._momentum = hashlib.sha256()

    def add(self, core: Core, segment: Segment) -> None:
        """Hash what the buffers hold of `segment`."""
        self._anchor.update(tensor_bytes(core.anchor_of(segment)))
        self._momentum.update(tensor_bytes(core.buffers.momentum_of(segment)))

    def finish(self, memory: bytes = b"") -> tuple[bytes, bytes]:
        """(anchor_sha256, state_digest); `memory`: digest of MEMORY, empty for runs without."""
        anchor = self._anchor.digest()
        return anchor, hashlib.sha256(anchor + self._momentum.digest() + memory).digest()


class SharedState:
    """Operations on the shared state."""

    def __init__(self, core: Core, guard: ChangeGuard) -> None:
        self._core = core
        self._guard = guard

    def ready(self, request: int, started: float) -> StateReady:
        """The answer that says what the buffers hold."""
        core, state = self._core, self._core.state
        schedule = core.memory.header(state.round).schedule if state.is_loaded else core.plan.schedule.start
        return StateReady(
            request,
            state.is_loaded,
            RoundIndex(state.round),
            state.anchor_sha256,
            state.state_digest,
            time.monotonic() - started,
            schedule.lowrank_r,
            schedule.inner_steps,
            schedule.next_lowrank_r,
            schedule.next_inner_steps,
            schedule.shared_steps,
        )

    def resume(self) -> None:
        """After a restart: learn again what the state says, and finish an interrupted ApplyEntry or CopyBase."""
        state = self._core.state
        if state.is_loaded:
            # Where an update was interrupted some results are new already: what is learnt of them here is learnt again.
            self._core.tune(is_fresh=state.operation != Operation.APPLY)
        if state.operation == Operation.COPY_BASE:
            self._copy_base()
        elif state.operation == Operation.APPLY:
            try:
                self._apply()
            except (OSError, RequestFailed, WireError):
                # The payload's file is gone meanwhile. The daemon loads a snapshot and replays the log instead.
                self._core.journal.write(is_loaded=False, operation=Operation.NONE)

    def genesis(self) -> None:
        """Fill the buffers with shared state 0, the same bits at every site."""
        core, model = self._core, self._core.plan.manifest.model
        self.begin_replace()
        layout = core.plan.layout
        core.report.begin("genesis", layout.numel)
        seed = core.plan.manifest.seeds.model
        for param in layout.params:
            span = layout.span(param.name)
            out = core.buffers.anchor[span.start : span.stop]
            std = init_std(param.name, model.init_std, model.num_layers)
            progress = partial(core.report.step, span.start)
            init_parameter(param.name, param.shape, seed, out, std=std, progress=progress)
        core.buffers.clear(local.MOMENTUM)
        core.memory.begin()
        self.finish_replace(0)

    def begin_replace(self) -> None:
        """From here to `finish_replace` the buffers hold no state."""
        for segment in self._core.plan.segments:
            self._guard.before_change(segment)
        self._core.journal.write(is_loaded=False, operation=Operation.NONE)

    def finish_replace(self, round_index: int, expected_digest: bytes | None = None) -> None:
        """Digest what the buffers now hold and declare it to be state `round_index`."""
        core = self._core
        digests = Digests()
        core.report.begin("digest", len(core.plan.segments))
        for segment in core.plan.segments:
            digests.add(core, segment)
            core.report.step(segment.index)
        anchor, digest = digests.finish(core.memory.digest(round_index))
        if expected_digest is not None and digest != expected_digest:
            raise RequestFailed(
                "corrupt_snapshot",
                f"the snapshot's tensors have state digest {digest.hex()[:16]}, its index says"
                f" {expected_digest.hex()[:16]}; use another snapshot (no state is loaded now)",
            )
        core.journal.write(is_loaded=True, round=round_index, anchor_sha256=anchor, state_digest=digest)
        core.tune(is_fresh=True)

    def apply(self, request: ApplyEntry) -> None:
        """Outer step: state `round` -> `round + 1`. An undecodable payload is found before anything changes."""
        core = self._core
        core.require_loaded()
        if core.state.round == request.round + 1:
            return
        core.require(
            core.state.round == request.round,
            f"entry {request.round} does not apply to state {core.state.round}",
        )
        self._require_lowrank(request)
        core.require(len(request.path.encode()) <= PATH_BYTES_MAX, "the payload's path is too long; shorten it")
        try:
            self._check_payload(request.path, request.offset)
            core.begin(Operation.APPLY, request.round, path=request.path, offset=request.offset)
            self._apply()
        except OSError as error:
            raise RequestFailed("store", f"payload of entry {request.round}: {error}") from error

    def _require_lowrank(self, request: ApplyEntry) -> None:
        expected = self._core.buffers.lowrank_r
        self._core.require(
            request.lowrank_r == expected,
            f"entry {request.round} has low rank {request.lowrank_r}, the state before it says {expected}",
        )

    def _check_payload(self, path: str, offset: int) -> None:
        core = self._core
        core.report.begin("check", len(core.plan.segments))
        with self._payloads(path, offset) as payloads:
            for segment, results in zip(core.plan.segments, payloads, strict=True):
                try:
                    self._decode_all(segment, results)
                except WireError as error:
                    raise RequestFailed("bad_payload", f"result segment {segment.index}: {error.detail}") from error
                core.report.step(segment.index)

    def _decode_all(self, segment: Segment, results: Sequence[memoryview]) -> None:
        transform = self._core.plan.transform
        for index, payload in enumerate(results):
            numel = transform.vector_numel(index, segment)
            vector = self._core.scratch[:numel] if numel <= self._core.scratch.numel() else torch.empty(numel)
            transform.codec(index, segment).decode(payload, vector)

    def check_result(self) -> None:
        """Raise RequestFailed(bad_payload) unless every segment in RESULT decodes."""
        self._check_payload("", 0)

    def _apply(self) -> None:
        core = self._core
        done = core.state.position
        digests = Digests()
        core.report.begin("apply", len(core.plan.segments))
        with self._payloads(core.state.path, core.state.offset) as payloads:
            for segment, results in zip(core.plan.segments, payloads, strict=True):
                if segment.index >= done:
                    self._step(segment, results)
                core.plan.transform.learn(segment, results)
                digests.add(core, segment)
                core.report.step(segment.index)
        entry = core.state.argument
        core.memory.advance(entry)
        anchor, digest = digests.finish(core.memory.digest(entry + 1))
        core.journal.write(operation=Operation.NONE, round=entry + 1, anchor_sha256=anchor, state_digest=digest)
        core.tune()

    def _step(self, segment: Segment, results: Sequence[memoryview]) -> None:
        core = self._core
        self._guard.before_change(segment)
        delta = core.scratch_of(segment)
        core.plan.transform.expand(segment, results[-1], results[:-1], delta)

        def change() -> dict[str, object]:
            transform, here = core.plan.transform, core.plan.transform.touched(segment)
            slots = [slot[here] for slot in core.buffers.slots_of(segment)]
            steps_before = transform.steps_before(core.state.argument)
            core.plan.optimizer.step_(core.anchor_of(segment)[here], slots, delta[here], steps_before)
            core.memory.keep(segment, [memoryview(result) for result in results])
            hold_thread("apply")
            return {}

        core.transact(Saved.STATE, segment, change)

    @contextmanager
    def _payloads(self, path: str, offset: int) -> Iterator[Iterator[tuple[memoryview, ...]]]:
        """Results of all passes, segment by segment: from the RESULT buffer, or from a file, one segment at a time."""
        plan = self._core.plan
        if not path:
            yield (self._core.buffers.results(plan.num_passes, segment.index) for segment in plan.segments)
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            lowrank_r = self._core.buffers.lowrank_r
            tables = (plan.payload_bytes_at(lowrank_r), plan.payload_offsets_at(lowrank_r))
            yield (_read_results(fd, offset, tables, segment.index) for segment in plan.segments)
        finally:
            os.close(fd)

    def copy_base(self, request: CopyBase) -> BaseCopied:
        """PHASE <- ANCHOR."""
        core = self._core
        core.require_loaded()
        core.begin(Operation.COPY_BASE, core.state.round)
        self._copy_base()
        return BaseCopied(request.request, RoundIndex(core.state.round))

    def _copy_base(self) -> None:
        core = self._core
        core.report.begin("copy", len(core.plan.segments))
        for segment in core.plan.segments:
            core.phase_of(segment).copy_(core.anchor_of(segment))
            core.report.step(segment.index)
        core.journal.write(operation=Operation.NONE)


def _read_results(fd: int, offset: int, tables: tuple[Table, Table], segment: int) -> tuple[memoryview, ...]:
    results = []
    for lengths, starts in zip(*tables, strict=True):
        buffer = memoryview(bytearray(lengths[segment]))
        results.append(_read_exactly(fd, buffer, offset + starts[segment]))
    return tuple(results)


def _read_exactly(fd: int, buffer: memoryview, offset: int) -> memoryview:
    left = buffer
    while left.nbytes:
        count = os.preadv(fd, [left], offset)
        if not count:
            raise RequestFailed("bad_payload", "the payload's file ends too early")
        left = left[count:]
        offset += count
    return buffer
