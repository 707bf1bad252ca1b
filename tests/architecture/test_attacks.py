"""docs/lab/attacks.md names tests and schedules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.findall(r"(tests/\S+\.py)::(\w+)", (ROOT / "docs" / "lab" / "attacks.md").read_text(encoding="utf-8"))
FINDINGS = {*(f"C{n}" for n in range(1, 7)), *(f"H{n}" for n in range(1, 6)), *(f"M{n}" for n in range(1, 8))}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_attack_is_replayed_by_what_the_page_names(path: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name


def test_every_finding_has_a_line() -> None:
    text = (ROOT / "docs" / "lab" / "attacks.md").read_text(encoding="utf-8")
    assert {name for name in FINDINGS if not re.search(rf"\b{name}\b", text)} == set()
