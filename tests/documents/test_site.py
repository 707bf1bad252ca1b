"""What the documentation's site is made of is there; `make docs` then checks every link in it."""

from pathlib import Path

import yaml

from tests.documents.site import ROOT, SETTINGS, linked_from, pages, stage


def paths_in(nav: object) -> list[str]:
    """All files that the navigation names."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(inner, list) or isinstance(nav, dict)
    return [path for one in inner for path in paths_in(one)]  # type: ignore[attr-defined]


def test_every_page_of_the_navigation_is_a_document_once() -> None:
    named = paths_in(yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))["nav"])
    assert len(named) == len(set(named))
    assert {Path(name) for name in named} <= set(pages())


def test_all_that_a_page_shows_lies_beside_it(tmp_path: Path) -> None:
    stage(tmp_path)
    shown = list(linked_from(Path("README.md")))
    assert Path("docs/images/soak.png") in shown
    for page in pages():
        for target in linked_from(page):
            assert (tmp_path / target).read_bytes() == (ROOT / target).read_bytes()


def test_readme_begins_with_what_a_user_gets() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    order = [
        text.index(part) for part in ("![", "pip install dilocoxd", "dilocoxd start", "dilocoxd join", "What it is not")
    ]
    assert order == sorted(order)
    assert text.index("make ") > text.index("## What it is not")
