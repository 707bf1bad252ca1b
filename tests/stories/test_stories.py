"""The stories of protocol/stories are what the machines do: played again here, and compared with the text."""

import difflib
import os
import re
import subprocess
import sys

import pytest

from tests.stories.library import STORIES
from tests.stories.story import COMMAND, FOLDER, LINES_MAX, WIDTH, Story

STORIES_MIN = 16
CHAPTERS = FOLDER.parent


def difference(story: Story, told: str) -> str:
    """Empty if the committed text is what was told."""
    kept = story.path.read_text(encoding="utf-8") if story.path.exists() else ""
    lines = difflib.unified_diff(kept.splitlines(), told.splitlines(), story.path.name, "as it goes now", lineterm="")
    changed = "\n".join(lines)
    return f"{changed}\n\nIf this is meant, `{COMMAND}` writes it anew; the commit says why." if changed else ""


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.file)
def test_story_goes_as_it_is_told(story: Story) -> None:
    assert not (changed := difference(story, story.text())), f"\n{changed}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.file)
def test_story_can_be_read(story: Story) -> None:
    lines = story.path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX, f"{len(lines)} lines, at most {LINES_MAX}: begin later, or show fewer peers"
    assert not [line for line in lines if not line.isascii()]
    assert max(map(len, lines)) <= WIDTH


def test_every_text_has_its_story() -> None:
    assert {path.name for path in FOLDER.glob("*.txt")} == {story.path.name for story in STORIES}
    assert len(STORIES) >= STORIES_MIN


def test_the_index_names_every_story() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    lines = [f"- [{story.file}]({story.file}.txt) - {story.title} ({story.rules})" for story in STORIES]
    assert [line for line in index if line.startswith("- [")] == lines


def test_stories_show_rules_that_exist() -> None:
    chapters = "\n".join(path.read_text(encoding="utf-8") for path in CHAPTERS.glob("[0-9]*.md"))
    rules = set(re.findall(r"^([A-Z]\d+)\. ", chapters, re.M))
    unknown = {story.file: set(story.rules.split()) - rules for story in STORIES if set(story.rules.split()) - rules}
    assert not unknown, f"rules that protocol/ does not have: {unknown}"


def test_stories_do_not_depend_on_the_order_of_sets() -> None:
    """Python orders sets of texts anew in every process: another process tells the same."""
    surroundings = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-m", "tests.stories", "--check"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_story_without_its_point_fails() -> None:
    """Played without what it is about, it raises instead of being written."""

    def pointless() -> None:
        stage = STORIES[0].play()
        assert stage.failures(), "nothing failed"

    with pytest.raises(AssertionError, match="nothing failed"):
        pointless()
