"""Lets several outer parts answer as one outer worker does (docs/adr/0030-outer-parts.md).

A segment's Reduce goes to the part that holds it. Everything else goes to all, and what could be refused by one and
done by another is asked as a check first. A state counts when every part has come to it; its digests follow from the
figures that come with their answers. What is asked again after the death of a part has the end that it would have had.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from dilocoxd.daemon.workers.machine_files import PartsMachine
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.daemon.workers.parts_snapshot import SnapshotOfParts, first_parts, index_of, refusal, require_borders
from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.store import snapshots
from dilocoxd.wire.layout import Segment
from dilocoxd.wire.local import buffers as local_buffers, outer_parts as parts, outer_worker as local
from dilocoxd.wire.local.figures import SegmentFigures, decode_figures, norms_of
from dilocoxd.wire.placement import place
from dilocoxd.wire.state_digest import Leaf, root_of

FIRST: Final = 0
"""The part that does what needs only one."""
AskPart = Callable[[int, Any], Awaitable[Any]]
"""Asks the part of this number; sends before it waits. Raises RequestRefused, WorkerError when it dies."""


class SharedBuffers(Protocol):
    """What is needed of daemon/workers/buffers.py, or of those of several machines: `punch` means all of them."""

    def size(self, name: str) -> int: ...

    def punch(self, name: str, offset: int, length: int) -> None: ...


class PartsTogether:
    """One request for all at a time, in the order in which they are asked."""

    def __init__(
        self, num_parts: int, ask: AskPart, buffers: SharedBuffers, machines: Sequence[PartsMachine] = ()
    ) -> None:
        """`machines`: of the site, the first is ours; each has buffers and files of its own
        (docs/adr/0035-a-site-on-several-machines.md). Empty: one has all parts."""
        self._num_parts = num_parts
        self._machines = tuple(machines) or (PartsMachine(num_parts),)
        self._ask = ask
        self._buffers = buffers
        self._owners: tuple[int, ...] = ()
        self._lengths: tuple[int, ...] = ()
        self._state: local.StateReady | None = None
        """That all parts have adopted; the next one may be on its way."""
        self._leaves: list[Leaf] = []
        """Of all segments of that state."""
        self._ranks: tuple[int, int, int] = (-1, 0, 0)
        """(state that they lead to, sum, number): what the results of the newest entry measured, over all parts. Kept,
        because a part that has adopted the state does not measure them again."""
        self._done: tuple[Any, Any] | None = None
        """The newest operation (a request with a number of its own), and its answer or refusal. The machine asks it
        again when a part died over it; done twice it could change what is read by then."""
        self._snapshot = SnapshotOfParts(self._machines)
        self._turn = asyncio.Lock()

    def describe(self, description: local.Described) -> None:
        """The layout, the same from every part."""
        self._lengths = description.segments
        ends = itertools.accumulate(self._lengths)
        segments = [Segment(index, end - self._lengths[index], end) for index, end in enumerate(ends)]
        dealt = place(segments, self._num_parts)
        self._owners = tuple(part for part, own in enumerate(dealt) for _ in own)

    def opened(self, state: local.StateReady) -> local.StateReady:
        """What all hold together when one that was started says that it holds `state`.

        Where a part is one entry ahead, the state is the one before: ApplyResult is asked again, and all go on.
        """
        known = self._state
        if known is not None and state.is_loaded and state.round in (known.round, known.round + 1):
            return known
        self._state = None
        return dataclasses.replace(state, is_loaded=False)

    async def ask(self, request: Any) -> Any:
        """The answer of all. Raises RequestRefused, WorkerError when a part dies."""
        match request:
            case local.OpenState() if self._state is not None:
                return self._state
            case local.WriteSnapshot():
                return await self._write_snapshot(request)
            case local.Reduce() | local.ReduceAgain():
                async with self._turn:
                    pass  # who has the next turn goes on after this has been sent: nothing lies between
                return await self._ask(self._owner_of(request), request)
            case _:
                async with self._turn:
                    return await self._once(request)

    def _owner_of(self, request: local.Reduce | local.ReduceAgain) -> int:
        return self.holder(request.segment) if isinstance(request, local.Reduce) else FIRST

    def holder(self, segment: int) -> int:
        """The part that has this segment; the first one for one that is none."""
        return self._owners[segment] if segment < len(self._owners) else FIRST

    def segments(self, part: int) -> range:
        """Of this part; they follow each other."""
        first = sum(owner < part for owner in self._owners)
        return range(first, first + self._owners.count(part))

    async def _once(self, request: Any) -> Any:
        outcome = self._done[1] if self._done is not None and self._done[0] == request else None
        if outcome is None:
            try:
                outcome = await self._together(request)
            except RequestRefused as refused:
                outcome = refused
            if request.request:
                self._done = request, outcome
        if isinstance(outcome, RequestRefused):
            raise outcome
        return outcome

    async def _together(self, request: Any) -> Any:
        match request:
            case local.FormContribution():
                return await self._form(request)
            case local.CopyBase() | local.ApplyResult() if self._state is None:
                raise RequestRefused("not_loaded", "no shared state is loaded; send LoadState first")
            case local.ApplyResult():
                return await self._apply(request)
            case local.LoadState():
                return await self._load(request)
            case local.ReturnWork():
                await self._all(dataclasses.replace(request, is_check=True))
                return (await self._all(request))[FIRST]
            case local.Settle():
                answers = await self._all(request)
                await self._clear(local_buffers.OUTBOX)
                return answers[FIRST]
            case local.RestoreSite():
                return await self._restore(request)
            case local.PreparePass():
                answers = await self._all(request)
                return dataclasses.replace(answers[FIRST], segment_hashes=_chained(answers))
            case local.SaveSite():
                return await self._save(request)
            case _:
                return (await self._all(request))[FIRST]

    async def _all(self, request: Any) -> list[Any]:
        """Answers of all parts, in order, when the last has answered. A death comes before a refusal."""
        return await self._some(dict.fromkeys(range(self._num_parts), request))

    async def _some(self, requests: Mapping[int, Any]) -> list[Any]:
        """By part, what it is asked; answers as from `_all`."""
        outcomes = dict.fromkeys(requests)
        async with asyncio.TaskGroup() as group:
            self._begin(group, requests, outcomes)
        return _answers(outcomes)

    def _begin(self, group: asyncio.TaskGroup, requests: Mapping[int, Any], outcomes: dict[int, Any]) -> None:
        async def ask_one(part: int, request: Any) -> None:
            try:
                outcomes[part] = await self._ask(part, request)
            except WorkerError as error:
                outcomes[part] = error

        for part, request in requests.items():
            group.create_task(ask_one(part, request), name=f"{type(request).__name__} of part {part}")

    async def _clear(self, name: str) -> None:
        size = self._buffers.size(name)
        if size:
            await asyncio.to_thread(self._buffers.punch, name, 0, size)

    async def _form(self, request: local.FormContribution) -> local.ContributionFormed:
        for checked in await self._all(dataclasses.replace(request, is_check=True)):
            if isinstance(checked, local.ContributionFormed):
                return checked  # not finite, and nothing was changed anywhere
        answers = await self._all(request)
        norm, residual_norm = norms_of(_figures(answers))
        seconds = max(answer.seconds for answer in answers)
        return local.ContributionFormed(0, request.phase, True, "", _chained(answers), norm, residual_norm, seconds)

    async def _save(self, request: local.SaveSite) -> local.SiteDone:
        """The first part of each machine saves what all parts there have. Ours comes last: with it the others count,
        which keep what they saved before (outerworker/away/files.py)."""
        ours, *others = first_parts(self._machines)
        await self._some(dict.fromkeys(others, request))
        saved: list[local.SiteDone] = await self._some({ours: request})
        return saved[FIRST]

    async def _restore(self, request: local.RestoreSite) -> local.SiteDone:
        """Our file decides; where another machine has none that fits, its segments start at zero."""
        answers = await self._all(request)
        ours = answers[: self._machines[0].num_parts]
        problem = next((answer.detail for answer in ours if not answer.is_restored), "")
        if problem:
            elsewhere = range(len(ours), self._num_parts)
            await self._some(dict.fromkeys(elsewhere, dataclasses.replace(request, path="")))  # from no file: zeros
            for name in (local_buffers.FEEDBACK, local_buffers.OWNER_FEEDBACK):
                await self._clear(name)
        missing = sum(self._lengths) if problem else sum(answer.missing for answer in answers)
        if missing and not problem:
            return local.SiteDone(0, True, f"{missing} of {sum(self._lengths)} values start at zero", missing)
        return local.SiteDone(0, not problem, problem, missing)

    async def _apply(self, request: local.ApplyResult) -> local.StateReady:
        number = request.round + 1
        if self._state is not None and self._state.round == number:
            return self._state
        await self._all(dataclasses.replace(request, is_check=True))
        try:
            stepped = await self._all(request)
        except RequestRefused as refused:
            self._state = None  # one cannot do what another has done
            raise RequestRefused(
                "not_loaded", f"entry {request.round} is half applied; load a state: {refused}"
            ) from refused
        if self._ranks[0] != number:
            self._ranks = number, sum(each.rank_sum for each in stepped), sum(each.num_ranks for each in stepped)
        return await self._adopt(stepped)

    async def _load(self, request: local.LoadState) -> local.StateReady:
        try:
            index = await asyncio.to_thread(index_of, request.directory) if request.directory else None
        except StoreError as error:
            raise RequestRefused("corrupt_snapshot", str(error)) from error
        checked: list[parts.PartReady] = await self._all(dataclasses.replace(request, is_check=True))
        if index is not None and len(self._machines) > 1:
            try:
                await require_borders(self._machines, request.directory, index, checked)
            except StoreError as error:
                raise RequestRefused("corrupt_snapshot", str(error)) from error
        self._state = None
        stepped = await self._all(request)
        self._ranks = (-1, 0, 0)
        if index is not None:
            leaves, first = _leaves(stepped), stepped[FIRST]
            problem = snapshots.disagreement(index, root_of(first.round, first.header, leaves), leaves, self._lengths)
            if any(each.header != first.header for each in stepped):
                # Each machine has its copy of it, which no chunk across a border tells of.
                problem = "the machines of the site have other headers in its memory; use another snapshot"
            if problem:
                raise RequestRefused("corrupt_snapshot", problem)
        return await self._adopt(stepped)

    async def _adopt(self, stepped: Sequence[parts.PartStepped]) -> local.StateReady:
        (number,) = {each.round for each in stepped}
        try:
            adopted: list[parts.PartAdopted] = await self._all(parts.AdoptState(0, number, *self._ranks[1:]))
        except RequestRefused as refused:
            raise WorkerError(f"a part was started anew before state {number} was there: {refused}") from refused
        self._leaves, answers = _leaves(stepped), [each.state for each in adopted]
        root = root_of(number, adopted[FIRST].header, self._leaves)
        differing = tuple(itertools.chain.from_iterable(answer.differing for answer in answers))
        self._state = dataclasses.replace(
            answers[FIRST],
            anchor_sha256=root.anchor_sha256,
            state_digest=root.state_digest,
            seconds=max(step.seconds + answer.seconds for step, answer in zip(stepped, answers, strict=True)),
            clipped=self._clipped(answers),
            differing=differing[: local.DIFFERING_MAX],
            num_differing=sum(answer.num_differing for answer in answers),
        )
        return self._state

    def _clipped(self, answers: Sequence[local.StateReady]) -> tuple[local.ClippedShare, ...]:
        found: dict[int, local.ClippedShare] = {}
        for share in itertools.chain.from_iterable(answer.clipped for answer in answers):
            before = found.get(share.place)
            found[share.place] = share if before is None else local.joined(before, share, len(self._lengths))
        return tuple(found[place] for place in sorted(found))

    async def _write_snapshot(self, request: local.WriteSnapshot) -> local.SnapshotSaved:
        """All parts begin at the same state; they write while requests go on, and it appears when all have written."""
        async with self._snapshot.prepared(request.directory) as saving:
            requests = dict.fromkeys(range(self._num_parts), request)
            outcomes = dict.fromkeys(requests)
            async with asyncio.TaskGroup() as group, self._turn:
                state, leaves = self._state, self._leaves
                if state is not None:
                    self._begin(group, requests, outcomes)
                    await asyncio.sleep(0)  # until each has sent it: ApplyResult may come next
            if state is None:
                raise RequestRefused("not_loaded", "no shared state is loaded; send LoadState first")
            if {saved.round for saved in _answers(outcomes)} != {state.round}:
                raise refusal(StoreError(f"the parts wrote other states than {state.round}"))
            hashed = await self._all(parts.HashSnapshot(0, request.directory, saving.names))
            return await saving.publish(state, list(zip(self._lengths, leaves, strict=True)), hashed)


def _figures(answers: Sequence[parts.PartStepped | local.ContributionFormed]) -> list[SegmentFigures]:
    """Of all segments, in their order."""
    return list(itertools.chain.from_iterable(decode_figures(answer.figures) for answer in answers))


def _leaves(stepped: Sequence[parts.PartStepped]) -> list[Leaf]:
    return [each.leaf for each in _figures(stepped)]


def _chained(answers: Sequence[Any]) -> tuple[bytes, ...]:
    return tuple(itertools.chain.from_iterable(answer.segment_hashes for answer in answers))


def _answers(outcomes: Mapping[int, Any]) -> list[Any]:
    errors = [each for each in outcomes.values() if isinstance(each, WorkerError)]
    if errors:
        raise next((error for error in errors if not isinstance(error, RequestRefused)), errors[0])
    return list(outcomes.values())
