"""Order of operations on the outer worker: one at a time, and the anchor never changes under a reader.

Two lanes. The base lane (FormContribution, CopyBase, ReturnWork) frees and refills PHASE and goes first; a ReturnWork
comes before the next FormContribution. The state lane (Settle, ApplyResult, LoadState, SaveSite, RestoreSite) keeps its
order; ApplyResult and LoadState wait while trainers read ANCHOR or the CopyBase of that reading is not done.
Source: docs/internals.md section 2.
"""

import dataclasses
from collections import deque
from dataclasses import dataclass

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase.vocabulary import OuterRequest
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    ContentItem,
    CopyBase,
    FormContribution,
    LoadState,
    ReturnWork,
    SaveSite,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One request; `order` is the daemon's order that ends with it, if any."""

    number: int
    request: OuterRequest
    order: int | None = None

    @property
    def writes_anchor(self) -> bool:
        """True for what changes ANCHOR."""
        return isinstance(self.request, ApplyResult | LoadState)


class OuterQueue:
    """The two lanes and the operation that runs."""

    def __init__(self) -> None:
        self.is_attached = False
        """The outer worker is there."""
        self.was_attached = False
        """It was there at least once: the buffers may hold what only this site has."""
        self.running: Operation | None = None
        self._base: deque[Operation] = deque()
        self._state: deque[Operation] = deque()
        self._number = 0

    def attach(self) -> None:
        """The outer worker is there, the first one or the next."""
        self.is_attached = self.was_attached = True

    def add(self, request: OuterRequest, *, order: int | None = None) -> None:
        """Append to its lane; `request.request` is replaced by a fresh number."""
        self._number += 1
        if isinstance(request, ReturnWork):
            request = dataclasses.replace(request, operation=self._number)
        operation = Operation(self._number, dataclasses.replace(request, request=self._number), order)
        lane = self._base if isinstance(request, FormContribution | CopyBase | ReturnWork) else self._state
        lane.append(operation)

    def start_next(
        self, *, is_anchor_read: bool, may_save: bool, content: tuple[ContentItem, ...] = ()
    ) -> Operation | None:
        """Take the next operation that may run now; it becomes `running`. None: nothing to do, or it must wait.

        A SaveSite that comes too late is dropped: the next contribution is formed, and its fate will bring another. One
        that starts notes `content`, what FEEDBACK holds now.
        """
        if self.running is not None or not self.is_attached:
            return None
        if self._base:  # so that what follows always finds the base copied
            self.running = self._base.popleft()
            return self.running
        while self._state:
            head = self._state[0]
            if isinstance(head.request, SaveSite) and not may_save:
                self._state.popleft()
                continue
            if head.writes_anchor and is_anchor_read:
                return None
            if isinstance(head.request, SaveSite):
                head = dataclasses.replace(head, request=dataclasses.replace(head.request, content=content))
            self._state.popleft()
            self.running = head
            return self.running
        return None

    def finish(self) -> Operation:
        """The running operation was answered."""
        assert self.running is not None
        operation, self.running = self.running, None
        return operation

    def _all(self) -> list[Operation]:
        return [*([self.running] if self.running else []), *self._base, *self._state]

    def state_after(self, shared: RoundIndex | None) -> RoundIndex | None:
        """Shared state after everything that runs or waits, given the one now; None: a load has still to tell."""
        for operation in reversed(self._all()):
            if isinstance(operation.request, ApplyResult):
                return RoundIndex(operation.request.round + 1)
            if isinstance(operation.request, LoadState):
                return None
        return shared

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return self.running is None and not self._base and not self._state

    @property
    def is_copying(self) -> bool:
        """A CopyBase waits or runs."""
        return any(isinstance(op.request, CopyBase) for op in self._all())

    @property
    def returning(self) -> frozenset[PhaseId]:
        """Phases of the ReturnWork that wait or run."""
        return frozenset(op.request.phase for op in self._all() if isinstance(op.request, ReturnWork))

    @property
    def is_changing_anchor(self) -> bool:
        """An ApplyResult or LoadState waits or runs: a reader should wait for the newer anchor."""
        return any(op.writes_anchor for op in self._all())

    @property
    def is_forgetting(self) -> bool:
        """A LoadState waits or runs that leaves an entry which was taken back."""
        requests = (op.request for op in self._all())
        return any(isinstance(request, LoadState) and request.forgets_feedback for request in requests)

    @property
    def is_forming(self) -> bool:
        """A FormContribution waits or runs."""
        return any(isinstance(op.request, FormContribution) for op in self._all())
