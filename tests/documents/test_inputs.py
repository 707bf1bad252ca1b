"""docs/lab/inputs.md names tests that exist."""

import re

from tests.documents.site import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
FEWEST = 60


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "lab" / "inputs.md").read_text(encoding="utf-8"))
    assert len(named) >= FEWEST
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert not missing, "\n".join(missing)
