"""What the documentation's site is made of is there; `make docs` then checks every link in it."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import markdown
import material
import pytest
import yaml

from tests.documents.site import ROOT, SETTINGS, STYLE, linked_from, pages, run_mkdocs, stage
from tests.tutorials.documents import TUTORIALS, commands_of


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
    assert (tmp_path / STYLE).read_bytes() == (ROOT / STYLE).read_bytes()
    for page in pages():
        for target in linked_from(page):
            assert (tmp_path / target).read_bytes() == (ROOT / target).read_bytes()


PLAIN = "site_name: x\ntheme: {name: mkdocs}\nnav: [index.md]\ndocs_dir: pages\n"


@pytest.mark.parametrize(("broken", "words"), [("[x](nowhere.md)", "nowhere.md"), ("[x](#nowhere)", "#nowhere")])
def test_a_link_that_leads_nowhere_makes_no_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str, words: str
) -> None:
    """It made one, and so did a page outside the navigation: nothing was counted that --quiet did not tell."""
    (tmp_path / "pages").mkdir()
    checks = SETTINGS.read_text(encoding="utf-8").partition("validation:\n")[2].partition("nav:\n  -")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{PLAIN}validation:\n{checks}")
    (tmp_path / "pages" / "index.md").write_text(f"# Home\n{broken}\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_mkdocs(tmp_path, tmp_path / "out", Path(sys.executable).parent / "mkdocs")
    assert words in capsys.readouterr().err


HIDDEN_FROM_THE_COPY = re.compile(r"code\[data-md-copying\] \.(\w+)(?=[^{}]*{\s*display: none;\s*})")


@pytest.mark.parametrize("name", sorted(path.name for path in TUTORIALS.glob("*.md")))
def test_what_the_button_copies_can_be_pasted(name: str) -> None:
    """It copied prompts and outputs too: a shell that gets them says that there is no command `$`."""
    settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    assert settings["extra_css"] == [str(STYLE)]
    hidden = HIDDEN_FROM_THE_COPY.findall((ROOT / STYLE).read_text(encoding="utf-8"))
    fences = re.findall(r"^```console\n.*?^```", (TUTORIALS / name).read_text(encoding="utf-8"), re.M | re.S)
    drawn = markdown.markdown("\n\n".join(fences), extensions=["pymdownx.highlight", "pymdownx.superfences"])
    copied = re.sub(rf'<span class="(?:{"|".join(hidden)})">[^<]*</span>', "", drawn)
    words = "".join(ElementTree.fromstring(f"<div>{copied}</div>").itertext())
    assert [line for line in words.splitlines() if line] == [one.command for one in commands_of(name)]


def test_the_button_marks_what_it_copies() -> None:
    """site.css hides by the mark that the theme's script sets while it copies."""
    theme = Path(material.__file__).parent / "templates" / "assets" / "javascripts"
    (script,) = theme.glob("bundle.*.min.js")
    assert '.setAttribute("data-md-copying","")' in script.read_text(encoding="utf-8")


def test_readme_begins_with_what_a_user_gets() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    order = [
        text.index(part) for part in ("![", "pip install dilocoxd", "dilocoxd start", "dilocoxd join", "What it is not")
    ]
    assert order == sorted(order)
    assert text.index("make ") > text.index("## What it is not")


DRAWN = sorted((ROOT / "docs" / "images").glob("*.svg"))
RULE = re.compile(r"\.(\w+)\{fill:(#\w+)")
DARK = "@media (prefers-color-scheme:dark)"
CONTRAST_MIN = 4.5
"""Of text, WCAG 2.2, 1.4.3."""


def brightness(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
    shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_there_are_drawings_in_the_pages_of_concepts() -> None:
    nav = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))["nav"]
    (concepts,) = [one["Concepts"] for one in nav if "Concepts" in one]
    shown = {target for page in paths_in(concepts) for target in linked_from(Path(page))}
    assert DRAWN and {path.relative_to(ROOT) for path in DRAWN} <= shown


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_drawing_has_words_for_those_who_do_not_see_it_and_contrast_by_day_and_night(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    tree = ElementTree.fromstring(source)
    words = [tree.findtext(f"{{http://www.w3.org/2000/svg}}{name}", "") for name in ("title", "desc")]
    assert all(words)
    day, night = source.split(DARK)
    for scheme in (day, night):
        fills = dict(RULE.findall(scheme))
        for ink in ("ink", "dim"):
            for ground in ("page", "box", "lane", "blue", "amber", "green", "red"):
                light, dark = sorted((brightness(fills[ink]), brightness(fills[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= CONTRAST_MIN, f"{ink} on {ground}"
