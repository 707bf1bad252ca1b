"""constraints-hashes.txt belongs to constraints.txt, as far as it can be told without a network."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from tests.harness.package_hashes import BUILDS, HASHES, HEAD, LINE, ROOT, WITHOUT, hashes_text, needed, normal, pins

TEXT = HASHES.read_text(encoding="ascii")
LINES = [line for line in TEXT.splitlines() if not line.startswith("#")]
ROWS = [row for line in LINES if (row := LINE.fullmatch(line))]


def test_every_line_has_one_version_one_hash_and_the_file_it_is_of() -> None:
    assert TEXT.startswith(HEAD), "make hashes"
    assert len(ROWS) == len(LINES), "a line of another form; make hashes"
    for column in ("name", "sha256"):
        twice = [text for text, count in Counter(row[column] for row in ROWS).items() if count > 1]
        assert not twice, f"{column} {twice} twice; make hashes"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_hash_is_that_of_a_file_of_the_pinned_version(row: dict[str, str]) -> None:
    name, version = row["name"], row["version"]
    assert pins()[name] == version, f"constraints.txt has another version of {name}; make hashes"
    stem = row["file"].removesuffix(".tar.gz")
    # A wheel's name ends with build and platform, an sdist's with the version.
    parts = stem.split("-") if row["file"].endswith(".whl") else stem.rsplit("-", 1)
    assert (normal(parts[0]), parts[1]) == (name, version), f"{row['file']} is no file of {name} {version}"
    assert not row["file"].endswith(".whl") or parts[-1].endswith(("any.whl", "x86_64.whl"))


def test_all_that_runs_has_a_hash_but_torch() -> None:
    names = {row["name"] for row in ROWS}
    assert not needed() - names, "make hashes"
    assert WITHOUT not in names and BUILDS in names


def test_hash_is_that_of_the_file_in_the_folder_of_wheels() -> None:
    wanted = {row["file"]: row["sha256"] for row in ROWS}
    for path in (ROOT / "docker" / "wheels").iterdir():
        if path.name in wanted:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted[path.name], f"{path.name} is another file"


def test_file_is_sorted_and_read_back_as_it_was_written() -> None:
    assert hashes_text({row["name"]: (row["file"], row["sha256"]) for row in reversed(ROWS)}) == TEXT
