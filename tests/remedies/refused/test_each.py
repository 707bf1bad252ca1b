"""Each refusal (exit code 78) says what to do; what it says in its place is said elsewhere, and is counted."""

from collections import Counter
from typing import Final

import pytest

from tests.remedies.refused.refusals import Refusal, refusals

FEWEST = 350
"""Refusals; far fewer would say that the reading of the source is broken."""
COMPOSED: Final = {
    "cli/client.py": 1, "cli/cluster/node.py": 2, "cli/commands.py": 1, "cli/configuration/command.py": 2,
    "cli/corpus.py": 4, "cli/doctor/before_start.py": 1, "cli/joining/newcomer.py": 1, "cli/joining/text.py": 3,
    "cli/model/first_state.py": 1,
    "cli/model/options.py": 1, "cli/model/origin.py": 1, "cli/overrides.py": 1,
    "cli/run_dir/admission.py": 1, "config/loading.py": 2,
    "daemon/node/slot.py": 1, "daemon/settings.py": 1, "daemon/site/nodes.py": 1, "daemon/workers/local_server.py": 1,
    "daemon/workers/trainers.py": 1,
    "library/describe.py": 1, "models/hf.py": 3, "models/hf_cut.py": 2, "models/own.py": 3, "store/admission.py": 2,
    "swarm/discovery/identity.py": 3, "swarm/p2pd/addresses.py": 2,
    "trainer/data/corpora.py": 4, "trainer/data/sources.py": 1, "trainer/pipeline.py": 1, "trainer/settings.py": 1,
    "trainer/tokens/arrow_tables.py": 2, "trainer/tokens/folders.py": 1, "trainer/tokens/vocabulary.py": 4,
}  # fmt: skip
"""How many sentences of a file end with a value in place of the words: theirs are made, or are another program's."""
NOBODYS: Final = {"the site runs VALUE trainer processes but its layout has VALUE ranks"}
"""Nobody can type it: the daemon starts as many processes as the layout has."""


@pytest.fixture(scope="module")
def found() -> list[Refusal]:
    return refusals()


def test_each_says_what_to_do(found: list[Refusal]) -> None:
    assert len(found) >= FEWEST
    mute = [one for one in found if not (one.says_what_to_do or one.is_composed or one.text in NOBODYS)]
    assert not mute, "no word on what to do: " + "\n".join(f"{one.file}:{one.line}: {one.text}" for one in mute)
    assert {one.text for one in found} >= NOBODYS


def test_those_that_leave_it_to_a_value_are_known(found: list[Refusal]) -> None:
    """One more could be a way around the test above: say it in the sentence, or see that the value does, and count."""
    assert Counter(one.file for one in found if one.is_composed and not one.says_what_to_do) == COMPOSED


@pytest.mark.parametrize(("text", "is_told"), [
    ("VALUE: is no list", False),
    ("VALUE: is no list; this is an error", False),
    ("--set VALUE: run.toml has no such section", False),
    ("VALUE: is no list; give one", True),
    ("key VALUE has mode VALUE, others could read it; run: chmod 600 VALUE", True),
    ("VALUE means nothing; did you mean VALUE?", True),
])  # fmt: skip
def test_what_tells_people_what_to_do_is_told_from_what_does_not(text: str, is_told: bool) -> None:
    assert Refusal("", 0, text).says_what_to_do == is_told
