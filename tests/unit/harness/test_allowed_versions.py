"""The versions that `.ci/versions` installs are the bounds of pyproject.toml."""

import subprocess
import sys

import pytest

from tests.harness.allowed_versions import PROJECT, constraints

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
    for name in ("torch", "transformers", "pyarrow", "wandb"):  # the last three come to the tests by no extra of theirs
        assert any(line.startswith((f"{name}==", f"{name}>=")) for line in lines), name
    assert len(lines) >= 15
