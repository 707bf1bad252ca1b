"""How much of this site's contribution an entry counted, segment by segment: what its error feedback gives up.

An entry's own results say it. Where they are not at hand (a snapshot took their place), the work that was kept before
our vote says it; without a vote of ours the whole contribution counts as given (R-b of protocol/06-rounds.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from dilocoxd.errors import StoreError, WireError
from dilocoxd.outer.clipping import factor_of
from dilocoxd.outerworker.failure import RequestFailed
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.results.kept import open_kept
from dilocoxd.outerworker.results.reading import Results, open_results, record_of
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local.outer_worker import RestoreSite, Settle

Counted = Callable[[Segment], tuple[float, Tensor | None]]
"""(factor, center) of our share of a segment: outer/passes.py, subtract_counted_."""


@contextmanager
def counted_share(workspace: Workspace, request: Settle) -> Iterator[Counted]:
    """Of the contribution that `request` settles. Raises RequestFailed (store, bad_payload)."""
    is_unknown = request.kept_path and not Path(request.kept_path).exists()
    if not workspace.plan.record_bytes or is_unknown:
        yield lambda segment: (1.0, None)
        return
    try:
        with _kept(workspace, request) if request.kept_path else _told(workspace, request) as counted:
            yield counted
    except (OSError, StoreError) as error:
        raise RequestFailed("store", f"the results of entry {request.round}: {error}") from error


@contextmanager
def counted_in_log(workspace: Workspace, request: RestoreSite) -> Iterator[Counted]:
    """Of the contribution that `request` finds in an entry from before the present state, in an exchange of one pass.

    Without results, and where shares were compared with what MEMORY no longer has, all of it. Raises OSError,
    RequestFailed (bad_payload).
    """
    plan = workspace.plan
    if not plan.record_bytes or plan.is_centered or not request.results_path:
        yield lambda segment: (1.0, None)
        return
    with open_results(workspace, request.results_path, request.offset, request.lowrank_r) as results:
        yield lambda segment: (_factor(plan, results(segment), segment, request.place), None)


@contextmanager
def _kept(workspace: Workspace, request: Settle) -> Iterator[Counted]:
    with open_kept(workspace, Path(request.kept_path), request.phase) as kept:
        yield lambda segment: (kept.factor(segment), kept.center(segment))


@contextmanager
def _told(workspace: Workspace, request: Settle) -> Iterator[Counted]:
    plan, memory, number = workspace.plan, workspace.memory, workspace.state.round
    with open_results(workspace, request.path, request.offset, request.lowrank_r) as results:
        yield lambda segment: (
            _factor(plan, results(segment), segment, request.place),
            memory.center(number, segment),
        )


def _factor(plan: OuterPlan, results: Results, segment: Segment, place: int) -> float:
    try:
        return factor_of(record_of(plan, results[-1]), place)
    except WireError as error:
        raise RequestFailed("bad_payload", f"result segment {segment.index}: {error.detail}") from error
