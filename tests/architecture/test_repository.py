"""What is beside the code: exact versions, links, commands that the documents promise."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from dilocoxd.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
EXACT = re.compile(r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!_-]+$")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


IGNORED = {
    ".git", ".venv", ".venv-eval", ".venv-peers", ".hypothesis", ".cache", "build", "dist", "demo-out", "node_modules",
}  # fmt: skip
PARTS = {"test-in-process", "test-parts", "test-sites", "test-guides", "test-adversary"}
BY_HAND = {"test-families", "test-compiled", "test-node-faults", "test-fast", "test-first-hour"}
"""Of the targets of tests: parts of those that a run of CI has, or their sums, and what it leaves out."""


def repository_files() -> list[Path]:
    """Files of the repository: everything but caches, environments and outputs."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in IGNORED and not f.endswith(("_cache", "__pycache__", ".egg-info"))]
        found += [Path(folder) / name for name in names if name != ".git"]
    return sorted(found)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraint_names() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    inexact = [line for line in pins if not EXACT.match(line)]
    assert not inexact, f"not an exact version: {inexact}; write name==version"
    return {normal(line.split("==")[0]) for line in pins}


def test_every_dependency_has_an_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    names = {normal(re.split(r"[<>=!~\[; ]", text)[0]) for text in wanted}
    assert names <= constraint_names(), f"add to constraints.txt: {sorted(names - constraint_names())}"


MARKDOWN = [p for p in repository_files() if p.suffix == ".md"]


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    targets = [t for t in LINK.findall(text) if "://" not in t and not t.startswith("mailto:")]
    dead = [t for t in targets if not (path.parent / t).exists()]
    assert not dead, f"{path.relative_to(ROOT)} links to nothing: {dead}"


def test_documents_use_only_commands_that_exist() -> None:
    used: dict[str, str] = {}
    for path in MARKDOWN:
        for command in re.findall(r"(?:^|`)dilocoxd ([a-z][a-z-]+)", path.read_text(encoding="utf-8"), re.M):
            used[command] = str(path.relative_to(ROOT))
    unknown = {c: p for c, p in used.items() if c not in cli.lazy}
    assert not unknown, f"commands that do not exist: {unknown}"
    assert {"start", "join", "run", "status"} <= set(used)


def test_every_test_with_processes_is_run_by_a_target_that_runs_processes() -> None:
    """The targets name folders, for collecting every test of the project takes a minute."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    parts = re.search(r"^PARTS := \$\(addprefix tests/integration/,(.+)\)$", makefile, re.M)
    guides = re.search(r"^GUIDES := (.+)$", makefile, re.M)
    sites = re.search(r"^SITES := (.+) \$\(addprefix --ignore ,\$\(PARTS\) \$\(GUIDES\)\)$", makefile, re.M)
    assert parts
    assert guides
    assert sites
    assert all((ROOT / "tests" / "integration" / name).exists() for name in parts[1].split())
    assert all((ROOT / name).exists() for name in guides[1].split())
    folders = [*sites[1].split(), *guides[1].split(), *re.findall(r"--ignore (tests/\w+)", makefile)]
    marked = [p for p in (ROOT / "tests").rglob("test_*.py") if "mark.processes" in p.read_text(encoding="utf-8")]
    assert len(marked) > 50
    paths = [str(path.relative_to(ROOT)) for path in marked if path != Path(__file__).resolve()]
    lost = [path for path in paths if not path.startswith(tuple(f"{folder}/" for folder in folders))]
    assert not lost, f"no target runs {lost}"


def test_what_no_target_of_tests_runs_is_run_by_lint() -> None:
    """tests/architecture, once in a run of CI."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lint = re.search(r"^lint: .+\n(?:\t.+\n)*\t.+ -m pytest -q (\S+)$", makefile, re.M)
    assert lint and lint[1] == "tests/architecture"
    left_out = set(re.findall(r"--ignore (tests/\w+)(?= |$)", makefile, re.M)) - {lint[1]}
    run = re.findall(r"-m pytest .*(?<!--ignore )\b(tests/\w+)", makefile)
    assert left_out <= set(run), f"no target runs {left_out - set(run)}"
    assert "stage lint make lint" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_ci_runs_every_target_of_tests_but_parts_of_others_and_what_is_run_by_hand() -> None:
    makefile, ci = (ROOT / "Makefile").read_text(encoding="utf-8"), (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(test-[a-z0-9-]+):", makefile, re.M))
    assert targets - set(re.findall(r"^ +stage .*\bmake (test-\S+)", ci, re.M)) == PARTS | BY_HAND
    processes = re.search(r"^test-processes: .+\n\t.+ \$\(PROCESSES\) (tests/.+)$", makefile, re.M)
    adversary = re.search(r"^test-adversary: .+\n\t.+ \$\(PROCESSES\) (tests/\w+) ", makefile, re.M)
    sites = re.search(r"^SITES := (.+?) \$\(addprefix --ignore", makefile, re.M)
    assert processes and sites and adversary
    assert {*processes[1].split()} == {*sites[1].split(), adversary[1], "tests/tutorials", "tests/documents"}
    attacks = (ROOT / adversary[1]).rglob("test_*.py")
    unmarked = [str(path) for path in attacks if "mark.processes" not in path.read_text(encoding="utf-8")]
    assert not unmarked, f"no stage runs {unmarked}: others leave the folder out, and this one takes what is marked"


def test_every_make_target_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {t for p in MARKDOWN for t in re.findall(r"(?:^|`)make ([a-z-]+)", p.read_text(encoding="utf-8"), re.M)}
    assert used <= targets, f"unknown make targets in the documents: {sorted(used - targets)}"


def test_no_file_is_bound_to_one_machine() -> None:
    """No home or work directories of a developer, no package index: a clone must work anywhere."""
    bound = re.compile(r"(^|[\s\"'=(])/(work|root|home)/[a-z]|--(extra-)?index-url|--find-links")
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)!r}"
        for path in repository_files()
        if path.suffix in (".py", ".toml", ".txt", ".md", ".cfg", ".yaml", ".yml", "") and path != Path(__file__)
        if (match := bound.search(path.read_text(encoding="utf-8", errors="replace")))
        and "/home/you" not in match.string[match.start() : match.start() + 12]
    ]
    assert not found, "\n".join(found)
