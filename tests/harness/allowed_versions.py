"""Which versions pyproject.toml allows, as constraints: `python tests/harness/allowed_versions.py oldest|newest`.

Needs nothing but Python: it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_NEED = re.compile(r"([A-Za-z0-9._-]+)\s*(.*)")


def constraints(needs: Sequence[str], which: str) -> list[str]:
    """For `oldest` every lower bound as the version; for `newest` the ranges themselves, as the tests need packages of
    extras that they do not install by those extras. What has no range is whatever pip takes.

    Raises ValueError for another word.
    """
    if which not in ("oldest", "newest"):
        raise ValueError(f"{which!r} is neither oldest nor newest")
    found = []
    for need in needs:
        match = _NEED.fullmatch(need)
        assert match is not None
        name, ranges = match[1], match[2].replace(" ", "").split(",")
        lower = next((part[2:] for part in ranges if part.startswith((">=", "=="))), "")
        if which == "newest" and ranges != [""]:
            found.append(f"{name}{','.join(ranges)}")
        if which == "oldest" and lower:
            found.append(f"{name}=={lower}" + (".*" if lower.count(".") < 2 and "==" not in match[2] else ""))
    return found


if __name__ == "__main__":
    tables = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    project = tables["project"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    build = tables["build-system"]["requires"]  # pip builds with what is installed (--no-build-isolation)
    print("\n".join(constraints((*project["dependencies"], *extras, *build), sys.argv[1])))
