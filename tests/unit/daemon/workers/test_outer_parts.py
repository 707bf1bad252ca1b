"""What is asked again of outer parts, because one died and was back before the others had answered, is done once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local.outer_parts import AdoptState
from dilocoxd.wire.local.outer_worker import ApplyResult, CopyBase, LoadState
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_parts import InnerParts
from tests.harness.outer_worker.swarm import foreign_payload

MANIFEST = tiny_manifest(model={"num_layers": 1}, strategy={"segment_elements_max": 4096})
NUM_PARTS = 3


class CountingParts(InnerParts):
    """Counts what each part does, checks aside; a part named in `lost` is started anew before it adopts a state."""

    def __init__(self) -> None:
        self.did: Counter[tuple[str, int]] = Counter()
        self.lost: set[int] = set()
        super().__init__(MANIFEST, NUM_PARTS)

    async def _ask_part(self, part: int, request: Any) -> Any:
        if isinstance(request, AdoptState) and part in self.lost:
            self.lost.discard(part)
            self._restart(part)
        if not getattr(request, "is_check", False):
            self.did[type(request).__name__, part] += 1
        return await super()._ask_part(part, request)

    async def twice(self, kind: type, *arguments: Any) -> list[Any]:
        """The same operation asked again while it is done."""
        request = kind(self.number(), *arguments)
        asked = (self.together.ask(request), self.together.ask(request))
        return await asyncio.gather(*asked, return_exceptions=True)


@pytest.fixture
def parts() -> CountingParts:
    return CountingParts()


def test_state_that_is_there_is_not_loaded_again_under_its_readers(parts: CountingParts) -> None:
    first, second = asyncio.run(parts.twice(LoadState, ""))
    assert first == second and first.is_loaded
    assert [parts.did["LoadState", part] for part in range(NUM_PARTS)] == [1] * NUM_PARTS


def test_base_is_not_copied_again_under_those_who_train_from_it(parts: CountingParts) -> None:
    parts.do(LoadState, "")
    first, second = asyncio.run(parts.twice(CopyBase))
    assert first == second
    assert [parts.did["CopyBase", part] for part in range(NUM_PARTS)] == [1] * NUM_PARTS
    parts.do(CopyBase)
    assert parts.did["CopyBase", 0] == 2, "another operation is another one"


def test_what_was_refused_is_refused_again(parts: CountingParts) -> None:
    first, second = asyncio.run(parts.twice(LoadState, "/nowhere"))
    assert isinstance(first, RequestRefused) and isinstance(second, RequestRefused) and first.kind == second.kind


def test_questions_without_a_number_are_asked_each_time(parts: CountingParts) -> None:
    parts.do(LoadState, "")
    for _ in range(2):
        asyncio.run(parts.together.ask(CopyBase(0)))
    assert parts.did["CopyBase", 0] == 2


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_part_started_anew_between_the_step_and_its_adoption_is_asked_again(
    parts: CountingParts, part: int, tmp_path: Path
) -> None:
    """What it had loaded counts for nothing; what it had applied it finds in its journal."""
    parts.lost = {part}
    expected = parts.do(LoadState, "")
    assert expected.is_loaded and expected.round == 0 and not parts.lost
    (tmp_path / "payload").write_bytes(foreign_payload(make_plan(MANIFEST), 3))
    parts.lost = {part}
    assert parts.do(ApplyResult, 0, str(tmp_path / "payload"), 0, 0).round == 1 and not parts.lost
