"""Every file of golden vectors is what its generator makes, and no generator uses dilocoxd (protocol E1, E8)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conformance.vectors import VECTORS

NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_generator_reproduces_its_file(name: str) -> None:
    command = [sys.executable, str(VECTORS / f"generate_{name}.py")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout
    assert made == (VECTORS / f"{name}.json").read_text(encoding="utf-8")


def test_every_generator_has_its_file_and_none_imports_the_implementation() -> None:
    sources = sorted(VECTORS.glob("*.py"))
    assert [path.stem for path in sources if path.stem.startswith("generate_")] == [f"generate_{n}" for n in NAMES]
    importing = re.compile(r"^\s*(import|from)\s+(dilocoxd|torch|msgpack|cryptography)", re.MULTILINE)
    assert not [path.name for path in sources if importing.search(path.read_text(encoding="utf-8"))]
