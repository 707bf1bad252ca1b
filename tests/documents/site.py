"""Makes the documentation as a site: `python -m tests.documents.site build/site` (what `make docs` does).

The documents stay where the repository has them; they are copied side by side as they lie, with all that they link to,
so that one link is right in both places. README.md is the first page. A link that leads nowhere fails.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "protocol")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
SETTINGS = ROOT / "mkdocs.yml"
STYLE = Path("docs/site.css")
"""What the pages look like, apart from the theme; relative to the repository."""


def pages() -> Iterator[Path]:
    """All documents, relative to the repository."""
    for name in PAGES:
        path = ROOT / name
        found = sorted(path.rglob("*.md")) if path.is_dir() else [path]
        yield from (one.relative_to(ROOT) for one in found)


def linked_from(page: Path) -> Iterator[Path]:
    """Files of the repository that a page links to or shows, relative to the repository."""
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (ROOT / page.parent / target).resolve()
        if path.is_file():
            yield path.relative_to(ROOT)


def stage(folder: Path) -> None:
    """Copy the documents and what they link to into an empty folder."""
    wanted = {*pages()}
    wanted |= {target for page in wanted for target in linked_from(page)}
    wanted |= {STYLE}
    for name in sorted(wanted):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def build(out: Path, program: Path) -> None:
    """The site in `out`; CalledProcessError for a page outside the navigation, or a link that leads nowhere."""
    with tempfile.TemporaryDirectory(prefix="dilocoxd-docs-") as scratch:
        folder = Path(scratch)
        stage(folder / "pages")
        settings = SETTINGS.read_text(encoding="utf-8") + "\ndocs_dir: pages\n"
        (folder / "mkdocs.yml").write_text(settings, encoding="utf-8")
        run_mkdocs(folder, out, program)


def run_mkdocs(folder: Path, out: Path, program: Path) -> None:
    """The same of a folder with mkdocs.yml and its pages. Not --quiet: what is not told is not counted by --strict."""
    command = [program, "build", "--strict", "--clean", "-f", folder / "mkdocs.yml", "-d", out.absolute()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.executable).parent / "mkdocs")
