"""What the documents tell people to type can be typed: each command of dilocoxd exists, with the options it is given.

What stands in blocks is typed, too: by test_typed.py, or by the tests that it names (the tutorials by tests/tutorials).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.site import ROOT
from tests.remedies.test_messages import problem_of

PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`dilocoxd ([^`\n]+)`")
TYPED = re.compile(r"(?:\$ )?(?:sudo )?(?:[A-Z_]+=\S+ )*dilocoxd (.+)")
END = re.compile(r"\s#|\s[|&><;]|;")
"""Behind it begins a comment, or another program."""
MADE = "COMMAND [ARGS]"
"""Of docs/commands.md, which is made from the commands themselves."""
FEWEST = 250
JOINED = re.compile(r"dilocoxd(?:-admin)? join (/ip4/\S+)")


def commands_of(page: Path) -> Iterator[str]:
    """What stands behind the word `dilocoxd`, in fenced blocks and in the text."""
    text = page.read_text(encoding="utf-8")
    yield from (END.split(told)[0] for told in INLINE.findall(text))
    for block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            found = TYPED.match(line.strip())
            if found:
                yield END.split(found[1])[0]


def wrong_in(page: Path) -> list[str]:
    """Commands that cannot be typed, each with the reason."""
    return [f"{told}: {why}" for told in commands_of(page) if MADE not in told and (why := problem_of(told))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_the_options_that_they_are_given(page: Path) -> None:
    assert wrong_in(page) == []


def test_the_pages_are_read() -> None:
    assert sum(len(list(commands_of(page))) for page in PAGES) >= FEWEST


def test_a_command_that_cannot_be_typed_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See `dilocoxd log --json`.\n```\n$ dilocoxd satus run  # no such word\ndilocoxd status run\n```\n")
    assert [one.partition(":")[0].strip() for one in wrong_in(page)] == ["log --json", "satus run"]


def test_join_lines_that_are_pasted_show_the_invite() -> None:
    """A page joined by a bare peer id, while the next one said that who has no invite gets nothing."""
    told = [(page.name, link) for page in PAGES for link in JOINED.findall(page.read_text(encoding="utf-8"))]
    assert {"README.md", "quickstart.md", "two-machines.md"} <= {name for name, _ in told}
    assert [one for one in told if "/key/" not in one[1]] == []
