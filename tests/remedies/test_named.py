"""No remedy is promised that nobody has thought about: each is named by a test that follows it, or as untried."""

import re
from pathlib import Path

from tests.remedies.names import REMEDIES, UNTRIED

TESTS = Path(__file__).resolve().parents[1]
MARK = re.compile(r"^\s*@pytest\.mark\.remedy\(([^)]*)\)", re.M)
NO_REMEDY = re.compile(r"^(Nothing|None)\b(?!, if)|^See `dilocoxd COMMAND --help`")
"""What asks for nothing has nothing to follow."""


def followed() -> set[str]:
    """Names in all marks of all tests."""
    texts = (path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    return {name for text in texts for mark in MARK.findall(text) for name in re.findall(r'"([^"]+)"', mark)}


def test_every_remedy_is_followed_by_a_test_or_listed_with_a_reason() -> None:
    wanted = {name for name, text in REMEDIES.items() if not NO_REMEDY.search(text)}
    missing = sorted(wanted - followed() - UNTRIED.keys())
    assert not missing, (
        f"no test follows these remedies: {missing}; write one that breaks the thing, follows the words and sees it"
        " work, and mark it with @pytest.mark.remedy(NAME)"
    )


def test_names_in_marks_and_lists_are_remedies_and_not_both() -> None:
    assert followed() <= REMEDIES.keys(), f"unknown: {sorted(followed() - REMEDIES.keys())}"
    assert UNTRIED.keys() <= REMEDIES.keys(), f"unknown: {sorted(UNTRIED.keys() - REMEDIES.keys())}"
    assert not followed() & UNTRIED.keys(), f"followed after all: {sorted(followed() & UNTRIED.keys())}"
