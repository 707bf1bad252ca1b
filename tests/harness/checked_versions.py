"""Whether an environment has the versions that it was made to try: `... checked_versions.py oldest|newest [report]`.

`report`: what pip would still install of our needs alone (`pip install --dry-run --upgrade --no-deps --report`): where
another package holds one of ours back, its newest version was not tried. Runs with the environment's own Python.
"""

import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALLED_EXTRAS: Final = ("demo", "dev", "docs")
"""What `.ci/versions` installs; `dev` names the packages of all other extras too, because the tests need them."""
NOT_BOUND: Final = (
    *("hypothesis", "import-linter", "mypy", "psutil", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"),
    *("ruff", "schemathesis", "selenium", "types-psutil"),
)
"""Tools of our own tests: nobody who installs dilocoxd gets them, so no range is promised; constraints.txt has the
exact ones. The newest are tried with the newest, and again with the oldest of all others."""


def declared(project: Mapping[str, object]) -> list[Requirement]:
    """Every need with a range in pyproject.toml: of the package, of all extras, and of who builds it."""
    table, build = project["project"], project["build-system"]
    assert isinstance(table, dict) and isinstance(build, dict)
    extras = [need for needs in table["optional-dependencies"].values() for need in needs]
    found = map(Requirement, (*table["dependencies"], *extras, *build["requires"]))
    return [need for need in found if need.specifier]


def lower_bound(need: Requirement) -> str:
    """The version that `oldest` tries; of a bound that names no patch its newest patch (allowed_versions.py)."""
    return next(one.version for one in need.specifier if one.operator in (">=", "=="))


def problems(
    needs: Sequence[Requirement],
    which: str,
    installed: Mapping[str, str],
    pinned: Mapping[str, str],
    newer: Mapping[str, str],
) -> list[str]:
    """What of this environment is not what it is called. `pinned`: constraints.txt; `newer`: pip's report."""
    found = []
    for need in needs:
        name = canonicalize_name(need.name)
        here, bound = installed.get(name), lower_bound(need)
        if here is None:
            found.append(f"{name} is not installed: nothing tries its range {need.specifier}")
        elif Version(here).public not in need.specifier:
            found.append(f"{name} {here} is outside of {need.specifier}")
        elif which == "oldest" and not _begins(here, bound):
            found.append(f"{name} {here} is not the lower bound {bound}")
        elif which == "newest" and name in newer:
            found.append(
                f"{name} {here} is held back: {newer[name]} is allowed; find out by whom, and narrow the range"
            )
        elif which == "newest" and name in pinned and Version(here) < Version(pinned[name]):
            found.append(f"{name} {here} is older than {pinned[name]} of constraints.txt")
    return found


def _begins(version: str, bound: str) -> bool:
    wanted = Version(bound).release
    return Version(version).release[: len(wanted)] == wanted


def read_pins(text: str) -> dict[str, str]:
    """constraints.txt: name to exact version."""
    rows = (re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s#;]+).*", line) for line in text.splitlines())
    return {canonicalize_name(row[1]): row[2] for row in rows if row is not None}


def read_report(path: Path) -> dict[str, str]:
    """Name to the version that pip would take if nobody else had a say."""
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = [one["metadata"] for one in report["install"]]
    return {canonicalize_name(row["name"]): row["version"] for row in rows}


def main(which: str, report: str = "") -> int:
    needs = declared(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in distributions()}
    newer = read_report(Path(report)) if report else {}
    if "TORCH" in os.environ:
        newer.pop("torch", None)
    print(f"== tried with Python {sys.version.split()[0]}:")
    for need in needs:
        here = installed.get(canonicalize_name(need.name), "not here")
        print(f"{need.name:<20} {here:<20} of {need.specifier}")
    found = problems(needs, which, installed, read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8")), newer)
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
