"""Documents that are made from code are up to date."""

import pytest

from tests.architecture.generated import DOCS, GENERATED


@pytest.mark.parametrize("name", GENERATED)
def test_generated_document_is_fresh(name: str) -> None:
    fresh = (DOCS / name).read_text(encoding="utf-8") == GENERATED[name]()
    assert fresh, f"docs/{name} is out of date: run `python -m tests.architecture.generated`"
