"""What a stranger made may cost: a template or a tokenizer that asks for all memory or time is one sentence."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dilocoxd.cli.model import data
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens import limits
from dilocoxd.trainer.tokens.limits import TokenizerApart
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer
from tests.unit.trainer.tokens import texts
from tests.unit.trainer.tokens.test_chat import CHATS, MARKED, PLAIN, packed, save, write
from tests.unit.trainer.tokens.texts import write_lines, write_tokenizer

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HUGE = "{% set x = 'x' * 3000000000 %}"
DEEP = "sum(range(10 ** 14))"
"""One call, in which no signal is heard."""
LIMITS = "limits.SECONDS_MAX, limits._GRACE_S, limits.MEMORY_BYTES_MAX = 1, 1, 1 << 30\n"


@pytest.mark.parametrize("template", [ENDLESS + PLAIN, ENDLESS + MARKED], ids=["plain", "marked"])
def test_a_template_without_an_end_is_named(tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS_MAX", 1)
    with pytest.raises(ConfigError, match=r"chats.jsonl, line 1: the chat template takes more than 1 s of CPU time"):
        packed(tmp_path, template, [{"messages": CHATS[0]}])
    assert not (tmp_path / "store").exists()
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL


def test_word_that_nobody_heard_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback of the garbage collector swallows what a handler raises there: then only SIGXCPU was left."""
    monkeypatch.setattr(limits, "SECONDS_MAX", 1)
    heard = 0
    with limits.bounded_time():
        while heard < 2:
            try:
                while True:
                    pass
            except limits.TakesTooLongError:
                heard += 1
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_time_in_the_kernel_counts_as_the_limit_of_the_process_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that gives memory back and takes it again spends its time there; SIGXCPU came before any word."""
    monkeypatch.setattr(limits, "SECONDS_MAX", 1)
    begun = time.process_time()
    with (
        Path("/dev/zero").open("rb", buffering=0) as zeros,
        pytest.raises(limits.TakesTooLongError),
        limits.bounded_time(),
    ):
        while time.process_time() < begun + 5:
            zeros.read(1 << 24)


def test_limit_is_by_the_clock_that_it_is_held_against(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts ticks there; by how long the process ran the limit was in the past once the two had parted."""
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    used = time.clock_gettime(~0 << 3)
    assert used > 1, "a test that is right by chance"
    with limits.bounded_time():
        soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    assert 0 <= soft - limits.SECONDS_MAX - limits._GRACE_S - int(used) <= 1


def pack(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """With a gibibyte of memory and a second for each text."""
    command = (
        "import sys; from dilocoxd.trainer.tokens import __main__, limits\n"
        f"{LIMITS}"
        "limits.bound_memory(); sys.exit(__main__.main(sys.argv[1:]))"
    )
    arguments = [sys.executable, "-c", command, "pack", "--processes", "1", *options, str(folder / "store")]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_a_template_that_asks_for_all_memory_is_named(tmp_path: Path) -> None:
    chats = write(tmp_path / "chats.jsonl", [{"messages": CHATS[0]}])
    done = pack(tmp_path, "--chat", "--tokenizer", str(save(tmp_path / "tokenizer", HUGE + PLAIN)), str(chats))
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "line 1: the chat template takes all memory" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "store").exists()


def test_what_hears_no_signal_is_ended() -> None:
    command = f"from dilocoxd.trainer.tokens import limits\n{LIMITS}with limits.bounded_time(): print({DEEP} > 0)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGXCPU, done.stderr


def test_a_tokenizer_whose_pattern_comes_to_no_end_is_one_sentence(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    table = json.loads(file.read_text())
    table["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps(table))
    done = pack(tmp_path, "--tokenizer", str(file), str(write_lines(tmp_path / "a.jsonl", ["a" * 60 + "b"] * 3)))
    assert done.returncode in (ConfigError.exit_code, -signal.SIGXCPU), done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode < 0 or "a text is too much for its tokenizer" in done.stderr.splitlines()[-1]


def test_a_tokenizer_that_makes_much_of_a_little_is_one_sentence(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    table = json.loads(file.read_text())
    table["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1000000}
    file.write_text(json.dumps(table))
    done = pack(tmp_path, "--tokenizer", str(file), str(write_lines(tmp_path / "a.jsonl", ["a" * 60000] * 3)))
    assert done.returncode in (ConfigError.exit_code, -signal.SIGABRT), done.stderr[-300:]


ODD: dict[str, tuple[dict[str, object], str]] = {
    "panic": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "is no tokenizer"),
    "prefix": (
        {
            "model": {
                "type": "BPE",
                "vocab": {"a": 0, "b": 1},
                "merges": [["a", "b"]],
                "continuing_subword_prefix": "xx",
            }
        },
        "is no tokenizer",
    ),
    "chunks of nothing": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "is too much for its tokenizer"),
    "no unknown": (
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}, "added_tokens": []},
        "is too much for its tokenizer",
    ),
}
"""What the library reads, and what it raises then is no Exception, or nothing but one."""


@pytest.mark.parametrize("name", ODD)
def test_a_tokenizer_that_the_library_stumbles_over_is_one_sentence(tmp_path: Path, name: str) -> None:
    folder, (odd, words) = write_tokenizer(tmp_path), ODD[name]
    (folder / "tokenizer_config.json").unlink()
    table = json.loads((folder / "tokenizer.json").read_text()) | odd
    (folder / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=words):
        texts.packed(tmp_path, [write_lines(tmp_path / "a.jsonl", ["ab and b"])])
    assert not (tmp_path / "store").exists()


def test_the_command_says_what_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -XCPU $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ConfigError, match="a text takes its tokenizer longer than any does; take it out"):
        data._run("show")


def spoilt(folder: Path, **tables: object) -> Path:
    """A tokenizer.json with these tables in place of its own."""
    file = write_tokenizer(folder) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | tables))
    return file


def replaced(old: str, new: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


GREEDY = [replaced("T", "Q" * 100_000), replaced("Q", "z" * 100_000)]
"""Ten gigabytes of one letter."""


def test_a_tokenizer_apart_gives_the_same_ids_and_text(tmp_path: Path) -> None:
    file, text = write_tokenizer(tmp_path) / "tokenizer.json", "Document 7, a caf\u00e9 \U0001f680"
    here = load_tokenizer(file)
    with TokenizerApart(file) as apart:
        ids = apart.encode(text)
        assert ids == here.encode(text).ids and apart.decode(ids) == here.decode(ids) == text
        assert apart.encode("") == [] and apart.decode([]) == ""


@pytest.mark.parametrize("table", [
    {"normalizer": {"type": "Sequence", "normalizers": GREEDY}},
    {"decoder": {"type": "Sequence", "decoders": GREEDY}},
])  # fmt: skip
def test_what_takes_all_memory_for_a_letter_ends_its_own_process_alone(
    table: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library aborts, and raises nothing: the command ended with a list of calls, or took all memory."""
    monkeypatch.setattr(limits, "MEMORY_BYTES_MAX", 1 << 30)
    with TokenizerApart(spoilt(tmp_path, **table)) as apart:
        assert apart.decode(apart.encode("a")) == "a"
        said = r"a text ends the process of its tokenizer \(SIGABRT\), which may take 1 GiB of memory; take that text"
        with pytest.raises(ConfigError, match=said):
            apart.decode(apart.encode("T"))
    assert capfd.readouterr() == ("", "")


def test_what_it_raises_of_a_text_is_one_sentence(tmp_path: Path) -> None:
    file = spoilt(tmp_path, pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
                                           "invert": False})  # fmt: skip
    with TokenizerApart(file) as apart, pytest.raises(ConfigError, match="a text is too much for its tokenizer"):
        apart.encode("a" * 60 + "b")


def test_a_text_without_an_end_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    load_tokenizer(file)  # tried, before nothing else can be
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -XCPU $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(limits.TakesTooLongError, match="a text takes its tokenizer more than 300 s of CPU time"):
        TokenizerApart(file)


TIGHTER = """
import resource, sys
from pathlib import Path
from dilocoxd.trainer.tokens import tried
from dilocoxd.trainer.tokens.limits import TokenizerApart
for what, least in (resource.RLIMIT_DATA, 2 << 30), (resource.RLIMIT_CPU, 100):
    resource.setrlimit(what, (least, least))
path = Path(sys.argv[1])
print(repr(tried.fault_of(path.read_text("utf-8"))))
with TokenizerApart(path) as apart:
    limits = [line.split()[-3:-1] for line in Path(f"/proc/{apart._process.pid}/limits").open() if "data" in line]
    print(apart.decode(apart.encode("some words of mine")), limits)
"""


def test_limits_that_the_command_has_itself_are_not_raised(tmp_path: Path) -> None:
    """A daemon gives a text half of the free memory: where that was less than 8 GiB, nobody but root had any text."""
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    done = subprocess.run([sys.executable, "-c", TIGHTER, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["''", f"some words of mine {[[str(2 << 30)] * 2]}"], done.stderr
