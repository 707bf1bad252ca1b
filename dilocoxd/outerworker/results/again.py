"""Sums one segment again from an audit's folder: the owner's arithmetic on signed shares, compared by its hash alone.

Reads nothing of the buffers: what OUTBOX, INBOX and RESULT hold belongs to whatever round runs now. So the answer is
the same in the outer worker of any site, and in a process that has only the run's manifest and the folder.
Source: protocol/07-exchange.md, X13; layout of the folder: store/audits.py.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import torch
from torch import Tensor

from dilocoxd.compress.codec import NotEncodableError, as_bytes, load
from dilocoxd.errors import StoreError, WireError
from dilocoxd.outer.passes import SegmentPass, reduce_pass, weigh_pass
from dilocoxd.outer.reduce import BadShareError
from dilocoxd.outerworker.failure import RequestFailed, from_store
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.results.weights import share_weights
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store.audits import BEFORE_NAME, read_case, read_file, share_name
from dilocoxd.wire.audit import AuditCase
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local.outer_worker import ReduceAgain, ReducedAgain, Share


def sum_again(plan: OuterPlan, directory: Path) -> bytes:
    """sha256 of the result that follows from the shares in `directory`, as an honest owner sends it.

    Raises BadShareError for a share that no owner can sum, StoreError, WireError, NotEncodableError.
    """
    case = read_case(directory)
    if plan.num_passes != 1 or case.segment >= plan.num_segments:
        raise StoreError(
            f"{directory}: entry {case.entry.round} has no segment {case.segment} that can be summed again"
        )
    segment = plan.layout.segments[case.segment]
    plan.transform.tune(case.entry.round, case.entry.lowrank_r)
    length = plan.payload_bytes_at(case.entry.lowrank_r)[0][segment.index]
    body = length - plan.record_bytes
    places = range(len(case.entry.contributions))
    payloads = [memoryview(read_file(directory / share_name(place), length))[:body] for place in places]
    at = SegmentPass(plan.transform, 0, segment)
    rule = plan.clip_rule(_center(plan, case, segment, directory, length))
    recent: list[float] = load(as_bytes(memoryview(case.recent)), torch.bfloat16).tolist() if case.recent else []
    weighing, record = weigh_pass(at, payloads, share_weights(plan, _shares(case)), rule, recent)
    result = bytearray(body)
    reduce_pass(at, payloads, weighing, None, result)
    told = record.encode(plan.manifest.round.peers_max) if plan.record_bytes else b""
    return hashlib.sha256(bytes(result) + told).digest()


def _shares(case: AuditCase) -> list[Share]:
    entry = case.entry
    return [
        Share(-1, named.tokens, entry.round - named.base_round, case.missing, entry.ramp_of(place))
        for place, named in enumerate(entry.contributions)
    ]


def _center(plan: OuterPlan, case: AuditCase, segment: Segment, directory: Path, length: int) -> Tensor | None:
    """As `Memory.center` gives it to the owner."""
    if not plan.is_centered:
        return None
    values = torch.zeros(segment.numel)
    if case.entry.round:
        before = memoryview(read_file(directory / BEFORE_NAME, length))
        plan.transform.expand(segment, before[: length - plan.record_bytes], (), values)
    return values


class AgainReducer:
    """ReduceAgain."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def handle(self, request: ReduceAgain) -> ReducedAgain:
        """Changes nothing. Raises RequestFailed: `bad_payload` with the place of a share that nobody can sum."""
        started = time.monotonic()
        try:
            digest = sum_again(self._workspace.plan, Path(request.directory))
        except BadShareError as error:
            raise RequestFailed("bad_payload", str(error.position)) from error
        except StoreError as error:
            raise from_store(error) from error
        except (WireError, NotEncodableError) as error:
            raise RequestFailed("bad_request", str(error)) from error
        finally:
            if self._workspace.state.is_loaded:
                self._workspace.tune()
        return ReducedAgain(request.request, digest, time.monotonic() - started)
