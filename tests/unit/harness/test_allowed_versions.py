"""The versions that `.ci/versions` installs are the bounds of pyproject.toml."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.harness.allowed_versions import PROJECT, constraints
from tests.harness.checked_versions import (
    INSTALLED_EXTRAS,
    NOT_BOUND,
    declared,
    problems,
    read_pins,
    read_report,
)

TABLES = tomllib.loads(PROJECT.read_text(encoding="utf-8"))

NEEDS = ["aiohttp>=3.14,<4", "hivemind==1.1.12", "pyarrow >= 26.0.1, < 27", "ruff"]


def test_oldest_are_the_lower_bounds_and_newest_the_ranges() -> None:
    assert constraints(NEEDS, "oldest") == ["aiohttp==3.14.*", "hivemind==1.1.12", "pyarrow==26.0.1"]
    assert constraints(NEEDS, "newest") == ["aiohttp>=3.14,<4", "hivemind==1.1.12", "pyarrow>=26.0.1,<27"]
    with pytest.raises(ValueError, match="'latest' is neither oldest nor newest"):
        constraints(NEEDS, "latest")


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_dependencies_and_extras_are_bound(which: str) -> None:
    done = subprocess.run(
        [sys.executable, PROJECT.parent / "tests" / "harness" / "allowed_versions.py", which],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "hivemind==1.1.12" in lines
    for name in (
        "torch",
        "setuptools",
        "transformers",
        "pyarrow",
        "wandb",
    ):  # the last three come to the tests by no extra of theirs
        assert any(line.startswith((f"{name}==", f"{name}>=")) for line in lines), name
    assert len(lines) >= 15


def names(needs: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(need).name) for need in needs}


def test_every_range_is_tried_and_what_has_none_is_named() -> None:
    extras = TABLES["project"]["optional-dependencies"]
    taken = names(TABLES["project"]["dependencies"] + TABLES["build-system"]["requires"])
    taken |= {name for extra in INSTALLED_EXTRAS for name in names(extras[extra])}
    bound = {canonicalize_name(need.name) for need in declared(TABLES)}
    assert bound <= taken, f"`.ci/versions` installs no {sorted(bound - taken)}: add the extra"
    assert taken - bound == set(NOT_BOUND), "no range: name it in NOT_BOUND with the reason, or give it one"
    job = (PROJECT.parent / ".ci" / "versions").read_text(encoding="utf-8")
    assert f".[{','.join(INSTALLED_EXTRAS)}]" in job and "tests.harness.checked_versions" in job


def test_narrow_and_open_ranges_have_their_reason_in_the_decision() -> None:
    decision = (PROJECT.parent / "docs" / "adr" / "0024-narrow-pins.md").read_text(encoding="utf-8")
    reasons = "\n".join(line.split("|")[1] for line in decision.splitlines() if line.startswith("| "))
    for need in declared(TABLES):
        ranges = str(need.specifier)
        upper = re.search(r"<(\d+)(\.\d+)?", ranges)
        is_ordinary = upper is not None and upper[2] is None
        assert is_ordinary or re.search(rf"\b{need.name}\b", reasons), f"{need.name} {ranges} has no row"


PINNED = {"aiohttp": "3.14.5", "pyarrow": "26.0.1"}
TRIED = [Requirement(need) for need in ("aiohttp>=3.14,<4", "PyArrow>=26.0.1,<27", "torch>=2.13,<2.14")]


BEHIND, GONE = {"aiohttp": "3.15.0", "pyarrow": "26.0.1"}, "torch is not installed"
CASES = {
    "oldest": ("oldest", {"aiohttp": "3.14.9", "pyarrow": "26.0.1", "torch": "2.13.0+cpu"}, {}, []),
    "oldest but two": (
        "oldest",
        {"aiohttp": "3.15.0", "pyarrow": "26.0.2", "torch": "2.13.0"},
        {},
        ["aiohttp 3.15.0 is not the lower", "pyarrow 26.0.2 is not the lower"],
    ),
    "newest": ("newest", {"aiohttp": "3.16.1", "pyarrow": "26.3.0", "torch": "2.13.0+cpu"}, {}, []),
    "old and too new": (
        "newest",
        {"aiohttp": "3.14.4", "pyarrow": "27.0.0", "torch": "2.13.0"},
        {},
        ["aiohttp 3.14.4 is older than 3.14.5", "pyarrow 27.0.0 is outside"],
    ),
    "held back": ("newest", BEHIND, {"aiohttp": "3.16.1"}, ["aiohttp 3.15.0 is held back: 3.16.1", GONE]),
}


@pytest.mark.parametrize(("which", "installed", "newer", "found"), CASES.values(), ids=CASES)
def test_environment_that_is_not_what_it_is_called_is_told(
    which: str, installed: dict[str, str], newer: dict[str, str], found: list[str]
) -> None:
    told = problems(TRIED, which, installed, PINNED, newer)
    assert len(told) == len(found) and all(one.startswith(start) for one, start in zip(told, found, strict=True)), told


def test_reports_and_pins_are_read(tmp_path: Path) -> None:
    report = {"install": [{"metadata": {"name": "Prometheus_Client", "version": "0.27.0"}}]}
    (tmp_path / "newer.json").write_text(json.dumps(report))
    assert read_report(tmp_path / "newer.json") == {"prometheus-client": "0.27.0"}
    assert read_pins("# exact\ntomli_w==1.2.0\ntorch==2.13.0  # first\n") == {"tomli-w": "1.2.0", "torch": "2.13.0"}
    pins = read_pins((PROJECT.parent / "constraints.txt").read_text(encoding="utf-8"))
    assert {canonicalize_name(need.name) for need in declared(TABLES)} - pins.keys() == set(), (
        "each has an exact version"
    )
