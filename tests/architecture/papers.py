"""Reads the rules of protocol/, citations of them, and commit messages. Pure but for `commits`, which asks git.

A rule is cited as letter and number (R10), one of its lines behind a point (R10.3), an invariant as R-a to R-e. An
invariant of another paper stands behind the name of that paper on the same line (ALGORITHMS I10).
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SUBJECT_MAX = 72
PROSE_MAX = 140
ROW_MAX = 240
"""A row of a table cannot be broken; a longer one wants a note below the table."""
PAGE_LINES_MAX = 150
PAGE_WIDTH_MAX = 180
CHANGELOG_KINDS = ("Added", "Changed", "Fixed", "Removed", "Wire", "Known limits")
LAST_FREE_COMMIT = "8582bc7"
"""Messages up to this commit follow no rule."""

DEFINED = re.compile(r"^(?:([A-Z]\d{1,2}|R-[a-e])\. |## (C\d{1,2}) )")
LINE_OF_RULE = re.compile(r"^(\d{1,2})\. ")
OTHER_PAPER = re.compile(r"ALGORITHMS\b.*")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as git tells it."""

    digest: str
    parents: tuple[str, ...]
    subject: str
    body: str


def logical_lines(text: str) -> list[str]:
    """Markdown with broken lines joined again: one for each paragraph, list item, row, heading; fences left out."""
    found: list[str] = []
    is_open = is_fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            is_fenced, is_open = not is_fenced, False
        elif is_fenced or not line.strip():
            is_open = False
        elif line.startswith(("|", "#")):
            found.append(line)
            is_open = False
        elif is_open and not re.match(r"\s*([-*]|\d+\.) ", line) and not DEFINED.match(line):
            found[-1] += " " + line.strip()
        else:
            found.append(line)
            is_open = True
    return found


def rules(chapter: str) -> dict[str, int]:
    """Every rule that a chapter defines, with the number of its numbered lines."""
    found: dict[str, int] = {}
    name = ""
    for line in logical_lines(chapter):
        if match := DEFINED.match(line):
            name = match.group(1) or match.group(2)
            found[name] = 0
        elif name and (numbered := LINE_OF_RULE.match(line)):
            found[name] = int(numbered.group(1))
        else:
            name = ""
    return found


def wrong_citations(text: str, known: Mapping[str, int]) -> list[tuple[int, str]]:
    """(line, citation) of each rule, invariant or line of a rule that does not exist."""
    letters = "".join(sorted({name[0] for name in known}))
    cited = re.compile(rf"(?<![\w.])([{letters}]\d{{1,2}})(?:\.(\d{{1,2}}))?(?!\w)|(?<!\w)(R-[a-z])(?!\w)")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in cited.finditer(OTHER_PAPER.sub("", line)):
            name, part = match.group(1) or match.group(3), int(match.group(2) or 0)
            if part > known.get(name, -1):
                found.append((number, match.group(0)))
    return found


def chapter_problems(text: str) -> list[str]:
    """Lines that are too long to be read, and lines with more than one MUST."""
    is_fenced, found = False, []
    for number, line in enumerate(text.splitlines(), 1):
        is_fenced ^= line.startswith("```")
        limit = ROW_MAX if line.startswith("|") else PROSE_MAX
        if len(line) > limit and not is_fenced:
            found.append(f"line {number} has {len(line)} characters, at most {limit}; break it, or add a note")
    for line in logical_lines(text):
        if line.count("MUST") > 1 and "RFC 2119" not in line:
            found.append(f"more than one MUST: {line[:60]!r}; give each a line of its own")
    return found


def page_problems(text: str) -> list[str]:
    """What makes a page of figures a lab book: too many lines, or lines that no screen shows."""
    lines = text.splitlines()
    found = [f"{len(lines)} lines, at most {PAGE_LINES_MAX}; what is history goes to docs/lab"] * (
        len(lines) > PAGE_LINES_MAX
    )
    wide = [number for number, line in enumerate(lines, 1) if len(line) > PAGE_WIDTH_MAX]
    return found + [f"line {number} has more than {PAGE_WIDTH_MAX} characters" for number in wide]


def changelog_problems(text: str, version: str) -> list[str]:
    """Unreleased first, a section for the version of the package, and no kind of change but CHANGELOG_KINDS."""
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    found = []
    if sections[:1] != ["Unreleased"]:
        found.append("the first section is not 'Unreleased'")
    if not any(re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", section) for section in sections):
        found.append(f"no section '{version} - YYYY-MM-DD'")
    kinds = re.findall(r"^### ([^:\n]+)", text, re.MULTILINE)
    return found + [f"'### {kind}' is none of {CHANGELOG_KINDS}" for kind in kinds if kind not in CHANGELOG_KINDS]


def message_problem(commit: Commit) -> str:
    """What is wrong with a commit message; empty if nothing."""
    if len(commit.parents) > 1:
        return ""
    if len(commit.subject) > SUBJECT_MAX:
        return f"{commit.digest[:7]}: subject of {len(commit.subject)} characters, at most {SUBJECT_MAX}"
    if not commit.body.strip():
        return f"{commit.digest[:7]}: no body; say why: {commit.subject!r}"
    return ""


def commits(root: Path) -> list[Commit]:
    """Commits after LAST_FREE_COMMIT; without it (a shallow clone) those with a parent here. None outside of git."""
    start = _git(root, "rev-parse", "--verify", "--quiet", f"{LAST_FREE_COMMIT}^{{commit}}").strip()
    log = _git(root, "log", "--format=%H%x00%P%x00%s%x00%b%x01", *([f"{start}..HEAD"] if start else ["HEAD"]))
    rows = [row.strip("\n").split("\0") for row in log.split("\1") if row.strip()]
    found = [Commit(digest, tuple(parents.split()), subject, body) for digest, parents, subject, body in rows]
    return [commit for commit in found if start or commit.parents]


def _git(root: Path, *arguments: str) -> str:
    """What git says; empty when it fails. The clone may belong to another user (a container's volume)."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
