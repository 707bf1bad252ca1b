"""What a page must say so that somebody who reads its text alone, in any viewer, can follow it."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.tutorials.documents import TUTORIALS, commands_of

PAGES = sorted(TUTORIALS.glob("*.md"))
TITLED = re.compile(r'^```\w+ title="([^"]+)"$', re.M)
WAITS = "; do sleep 1; done"
ENDS_S = 60.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_file_is_named_in_the_text_before_it(page: Path) -> None:
    """Titles of blocks are shown by the documentation's site alone."""
    text = page.read_text(encoding="utf-8")
    for title in TITLED.finditer(text):
        before = re.sub(r"^```.*?^```$", "", text[: title.start()], flags=re.M | re.S)
        assert title.group(1) in before, title.group(1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_who_waits_for_a_daemon_that_has_ended_is_told(page: Path, tmp_path: Path) -> None:
    """A taken port was said in a file that nobody looked at, while the terminal stood still for ever."""
    waiting = [one.command for one in commands_of(page.name) if one.command.endswith(WAITS)]
    (tmp_path / "dilocoxd").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "dilocoxd").chmod(0o755)
    for command in waiting:
        lines = f"PATH={tmp_path}:$PATH\nfalse &\nwait\n{command}\necho ends"
        ended = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, timeout=ENDS_S, check=False)
        assert ended.stdout == "ends\n", command
        assert "No such process" in ended.stderr, command
    assert bool(waiting) == ("`No such process`" in page.read_text(encoding="utf-8"))
