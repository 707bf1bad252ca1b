"""The protocol is told once and readably, what cites it cites what exists, and commits say why."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.architecture.papers import (
    PAGE_LINES_MAX,
    PROSE_MAX,
    SUBJECT_MAX,
    Commit,
    changelog_problems,
    chapter_problems,
    commits,
    logical_lines,
    message_problem,
    page_problems,
    rules,
    wrong_citations,
)

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "protocol").glob("*.md"))
RULES = {name: lines for path in CHAPTERS for name, lines in rules(path.read_text(encoding="utf-8")).items()}
CITING = [
    *sorted(p for folder in ("dilocoxd", "tests") for p in (ROOT / folder).rglob("*.py")),
    *sorted(p for folder in ("docs", "protocol") for p in (ROOT / folder).rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
]


def test_every_rule_that_is_cited_exists() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {citation} is no rule of protocol/; an invariant of another paper is"
        " cited behind its name (ALGORITHMS I10)"
        for path in CITING
        if path.name != Path(__file__).name
        for number, citation in wrong_citations(path.read_text(encoding="utf-8"), RULES)
    ]
    assert not found, "\n" + "\n".join(found)


def test_rules_of_all_kinds_are_found() -> None:
    assert {"O1", "E1", "I1", "S1", "D1", "R1", "X1", "C1", "L1", "V1", "R-a", "R-e"} <= set(RULES)
    assert RULES["R10"] == 7


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.name)
def test_chapter_reads_line_by_line(path: Path) -> None:
    problems = chapter_problems(path.read_text(encoding="utf-8"))
    assert not problems, "\n" + "\n".join(f"{path.name}: {problem}" for problem in problems)


@pytest.mark.parametrize("name", ["benchmarks.md", "simulation.md"])
def test_page_of_figures_is_one_page(name: str) -> None:
    problems = page_problems((ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert not problems, "\n" + "\n".join(f"docs/{name}: {problem}" for problem in problems)


def test_changelog_has_its_shape() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    problems = changelog_problems((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    assert not problems, "\n" + "\n".join(problems)


def test_commits_have_a_short_subject_and_say_why() -> None:
    problems = [problem for commit in commits(ROOT) if (problem := message_problem(commit))]
    assert not problems, "\n" + "\n".join(problems)


def test_messages_of_a_shallow_clone_are_read_too(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert not commits(tmp_path)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "before the rule, or the edge of a shallow clone")
    assert not commits(tmp_path)
    git("commit", "-q", "--allow-empty", "-m", "Subject", "-m", "Because.")
    git("commit", "-q", "--allow-empty", "-m", "No reason")
    assert [commit.subject for commit in commits(tmp_path)] == ["No reason", "Subject"]
    assert [message_problem(commit) != "" for commit in commits(tmp_path)] == [True, False]


BAD_CHAPTER = "# Bad\n\nZ1. *Title*\n1. A peer MUST do this\n   and MUST do that.\n2. Fine.\n\n" + "x" * (PROSE_MAX + 1)


def test_the_checks_themselves_find_what_they_are_for() -> None:
    assert rules(BAD_CHAPTER) == {"Z1": 2}
    assert len(chapter_problems(BAD_CHAPTER)) == 2
    assert logical_lines("```\n1. no\n```\n- a\n  b\n- c") == ["- a b", "- c"]
    known = {"R1": 2, "X9": 0, "R-a": 0}
    wrong = "R1.3 R2, X99 and R-f; see R1.2, R1, R-a and X9. ALGORITHMS X1 and R7\n(X8)"
    assert wrong_citations(wrong, known) == [(1, "R1.3"), (1, "R2"), (1, "X99"), (1, "R-f"), (2, "X8")]
    assert not wrong_citations("PR1 R1a AR-f 3.R4 E402", known)
    assert len(page_problems("\n" * PAGE_LINES_MAX + "x" * 181)) == 2
    assert len(changelog_problems("## 0.1.0\n### Improved\n", "0.1.0")) == 3
    assert not changelog_problems("## Unreleased\n## 0.1.0 - 2026-11-22\n### Added: network\n", "0.1.0")
    merge = Commit("0" * 40, ("1", "2"), "x" * 99, "")
    assert not message_problem(merge)
    assert message_problem(Commit("0" * 40, ("1",), "x" * (SUBJECT_MAX + 1), "why"))
    assert message_problem(Commit("0" * 40, ("1",), "x", " \n"))
    assert not message_problem(Commit("0" * 40, ("1",), "x" * SUBJECT_MAX, "why"))
