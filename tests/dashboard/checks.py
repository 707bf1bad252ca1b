"""What a page owes to everybody, as checks.js measures it in it: contrast, names, headings, no width too much."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from tests.dashboard.browser import Page

MEASURE: Final = Path(__file__).with_name("checks.js").read_text(encoding="utf-8")
TEXTS_MIN: Final = 60
"""Fewer texts than this are not the page."""


def check_page(page: Page) -> None:
    """All of it, in the state that the page is in."""
    found = page.run(MEASURE)
    assert found["width"] <= found["screen"] and found["sticksOut"] == [], found["sticksOut"]
    assert found["checked"] > TEXTS_MIN and found["faint"] == [], found["faint"]
    assert found["unnamed"] == []
    assert found["tables"] == 0, "every table has a caption, and scopes at its heads"
    assert found["doubled"] == []
    assert found["language"] == "en"
    check_headings(found["headings"])


def check_headings(headings: list[tuple[int, str]]) -> None:
    """One h1, first; no level is left out on the way down; none is empty."""
    levels = [level for level, _ in headings]
    assert levels[0] == 1 and levels.count(1) == 1, headings
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels)), headings
    assert all(text for _, text in headings), headings
