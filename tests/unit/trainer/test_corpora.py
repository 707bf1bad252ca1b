"""Corpora that are Debian packages, where there is no network: said quickly, and in one sentence."""

from pathlib import Path

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data import corpora
from dilocoxd.trainer.data.corpora import read_corpus

OFFLINE = "E: Failed to fetch http://mirror.example/gcide.deb  Temporary failure resolving 'mirror.example'"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a network, whose apt-get notes in this file what it was asked for."""
    calls = tmp_path / "calls"
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho "{OFFLINE}" >&2\nexit 100\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return calls


def test_without_a_network_apt_is_asked_once(asked: Path) -> None:
    """It fetched the package lists then, and tried again."""
    with pytest.raises(ConfigError) as caught:
        read_corpus("gcide", print)
    (call,) = asked.read_text().splitlines()
    assert "Acquire::Retries=0" in call and call.endswith("download dict-gcide")
    text = str(caught.value)
    assert text.startswith("cannot download Debian package dict-gcide (no network): ")
    assert "--data NAME=PATH" in text and "text:" not in text


def test_english_says_in_one_sentence_what_it_takes_instead(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "_stdlib_docstrings", lambda: iter(["words"]))
    said: list[str] = []
    assert read_corpus("english", said.append) == ("words", "stdlib")
    assert said == [
        "downloading Debian package dict-gcide",
        "cannot download Debian package dict-gcide (no network); taking corpus stdlib instead (--data NAME=PATH gives"
        " your own text)",
    ]
