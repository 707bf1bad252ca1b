"""The versions that `.ci/versions` installs are the bounds of pyproject.toml."""

import subprocess
import sys

import pytest

from tests.harness.allowed_versions import PROJECT, constraints

NEEDS = ["aiohttp>=3.14,<4", "hivemind==1.1.12", "pyarrow >= 26.0.1, < 27", "ruff"]


def test_oldest_are_the_lower_bounds_and_newest_binds_nothing() -> None:
    assert constraints(NEEDS, "oldest") == ["aiohttp==3.14.*", "hivemind==1.1.12", "pyarrow==26.0.1"]
    assert constraints(NEEDS, "newest") == []
    with pytest.raises(ValueError, match="'latest' is neither oldest nor newest"):
        constraints(NEEDS, "latest")


def test_every_dependency_has_a_lower_bound() -> None:
    done = subprocess.run(
        [sys.executable, PROJECT.parent / "tests" / "harness" / "allowed_versions.py", "oldest"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "hivemind==1.1.12" in lines and any(line.startswith("torch==") for line in lines)
    assert len(lines) >= 15
