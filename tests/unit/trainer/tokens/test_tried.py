"""A tokenizer.json that ends the process that reads it: another process does, and here it is one sentence."""

import base64
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens import tried
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer
from tests.unit.trainer.tokens import texts
from tests.unit.trainer.tokens.texts import write_lines, write_tokenizer

ROOM = 1 << 30
"""Of bytes for the process that reads: less than what the table below asks for."""
HUGE = b"\xfc\xff\xff\xff" + bytes(8)
"""A charsmap that says of itself that its first table has 4 GiB: the library takes them before it looks."""
WITHOUT_LIMITS = """
import resource, sys
from tokenizers import Tokenizer
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_DATA, (ROOM, ROOM))
Tokenizer.from_file(sys.argv[1])
"""


def spoilt(folder: Path, normalizer: dict[str, Any]) -> Path:
    """A good tokenizer with this normalizer."""
    file = write_tokenizer(folder) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": normalizer}))
    return file


def charsmap(data: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


@pytest.fixture(autouse=True)
def nothing_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process use the same tokenizer."""
    monkeypatch.setattr(tried, "_KNOWN", deque())


@pytest.fixture
def fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tried, "MEMORY_BYTES_MAX", ROOM)
    return spoilt(tmp_path, charsmap(HUGE))


def test_the_library_dies_of_it(fatal: Path) -> None:
    code = WITHOUT_LIMITS.replace("ROOM", str(ROOM))
    done = subprocess.run([sys.executable, "-c", code, str(fatal)], capture_output=True, check=False)
    assert done.returncode == -6, done.stderr


def test_here_it_is_one_sentence(fatal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no tokenizer \(the library ends with SIGABRT while it"):
        load_tokenizer(fatal)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_packed_with_it(fatal: Path) -> None:
    with pytest.raises(ConfigError, match="SIGABRT"):
        texts.packed(fatal.parent.parent, [write_lines(fatal.parent / "a.jsonl", ["ab and b"])])


def test_what_it_raises_is_told_without_its_traces(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"is no tokenizer \(Precompiled: .*Cannot parse precompiled_charsmap"):
        load_tokenizer(spoilt(tmp_path, charsmap(b"")))
    assert capfd.readouterr() == ("", "")


def test_what_takes_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -XCPU $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ConfigError, match=r"is no tokenizer \(reading it takes more than 120 s of CPU time\); give"):
        load_tokenizer(write_tokenizer(tmp_path))


def test_a_good_one_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    load_tokenizer(file)
    assert tried.survived()
    monkeypatch.setattr(sys, "executable", "/nobody/is/here")
    load_tokenizer(file)
    tried.remember(tried.survived())
    file.write_text(file.read_text() + " ")
    with pytest.raises(FileNotFoundError):
        load_tokenizer(file)


def test_words_that_it_does_not_know_are_no_fault(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    table = json.loads(file.read_text())
    table |= {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}, "added_tokens": []}
    file.write_text(json.dumps(table))
    assert load_tokenizer(file).get_vocab_size() == 1
