"""The support archive: everything that helps, and no key, token or training text anywhere in it."""

import json
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._C._distributed_c10d as c10d
from click.testing import CliRunner

from dilocoxd.cli.doctor.bundle import listing, record_of, scrubbed
from dilocoxd.cli.main import cli
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.telemetry.catalogue import WorkerDied
from dilocoxd.telemetry.events import EventLog
from tests.harness.running.run_directories import free_port

TOKEN = "canary-token-0123456789"
TEXT = "canary of the training text"


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run with a token, a key, text, weights, and a log in which a careless program wrote the token."""
    folder = tmp_path / "run"
    options = ["--dir", str(folder), "--port", "0", "--api-port", str(free_port()), "--cache", str(tmp_path / "cache")]
    assert CliRunner().invoke(cli, ["init", "tiny", *options], standalone_mode=False).exception is None
    run_dir = open_run_dir(folder)
    _, site = run_dir.load()
    (folder / site.api.token_file).write_text(TOKEN)
    (tmp_path / "cache").mkdir(exist_ok=True)
    for place in (tmp_path / "cache" / "text", folder / "site" / "feedback.safetensors", folder / "corpus.txt"):
        place.parent.mkdir(exist_ok=True)
        place.write_text(TEXT)
    events = EventLog(run_dir.events, level="error")
    events.emit(WorkerDied(worker="outer", pid=7, reason=f"curl said {TOKEN}", restarts_left=3))
    (run_dir.logs / "outer.log").write_text(f"Authorization: Bearer abcdef0123456789\nfine\nWANDB_API_KEY={'f' * 40}\n")
    hang = run_dir.logs / "hangs" / "20260101T000000-generation-1"
    hang.mkdir(parents=True)
    (hang / "stacks-0.txt").write_text("in all_reduce")
    entries = [{"profiling_name": "nccl:all_reduce", "record_id": number} for number in range(300)]
    (hang / "nccl-timeout-0").write_bytes(pickle.dumps({"entries": entries, "note": f"token={TOKEN}"}, protocol=2))
    return folder


def test_bundle_helps_and_tells_no_secret(run_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "help.tar.gz"
    done = CliRunner().invoke(
        cli, ["doctor", str(run_directory), "--bundle", str(out)], standalone_mode=False, catch_exceptions=False
    )
    assert "look into it before you send it" in done.stderr
    with tarfile.open(out) as archive:
        found = {}
        for member in archive.getmembers():
            opened = archive.extractfile(member)
            assert opened is not None
            found[member.name.removeprefix("dilocoxd-bundle/")] = opened.read().decode()
    assert {
        "findings.json",
        "versions.json",
        "files.txt",
        "run.json",
        "site.json",
        "logs/events.jsonl",
        "logs/outer.log",
        "logs/hangs/20260101T000000-generation-1/stacks-0.txt",
        "logs/hangs/20260101T000000-generation-1/nccl-timeout-0.json",
    } <= set(found)
    record = json.loads(found["logs/hangs/20260101T000000-generation-1/nccl-timeout-0.json"])
    assert [one["record_id"] for one in record["entries"]] == list(range(200, 300))
    run_dir = open_run_dir(run_directory)
    key = run_dir.identity(run_dir.load()[1]).read_bytes()
    for name, text in found.items():
        assert TOKEN not in text and TEXT not in text and "f" * 40 not in text and "abcdef0123456789" not in text, name
        assert key[40:80] not in text.encode("utf-8", "surrogateescape") and key[40:80].hex() not in text, name
    assert json.loads(found["run.json"])["model"]["kind"] == "native" and "fine" in found["logs/outer.log"]
    assert "identity.key" in found["files.txt"] and '"worker.died"' in found["logs/events.jsonl"]
    assert json.loads(found["versions.json"])["dilocoxd"]


def test_record_of_torch_is_read_as_it_writes_it_and_nothing_in_it_is_called(tmp_path: Path) -> None:
    file, called = tmp_path / "nccl-timeout-0", tmp_path / "called"
    file.write_bytes(c10d._dump_fr_trace())  # the recorder of NCCL, without NCCL
    assert json.loads(record_of(file))["version"]
    nested = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    for data in (pickle.dumps(called.touch), b"", b"\x80\x02}(", b"no pickle at all", nested):
        file.write_bytes(data)
        assert "cannot be read" in json.loads(record_of(file))["error"]
    assert not called.exists()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("token=abcdefgh", "token=***"),
        ('{"api_key": "abcdefgh"}', '{"api_key": "***"}'),
        ("/ip4/1.2.3.4/tcp/1/p2p/Qm?invite=abcdefgh", "/ip4/1.2.3.4/tcp/1/p2p/Qm?invite=***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "***"),
        ("1,240 tokens at token 5", "1,240 tokens at token 5"),
        ('"tokens": 123456789, "tokenizer": "bpe1234"', '"tokens": 123456789, "tokenizer": "bpe1234"'),
    ],
)
def test_what_is_named_like_a_secret_goes(text: str, left: str) -> None:
    assert scrubbed(text, []) == left


def test_bundle_needs_a_site() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--bundle", "x.tar.gz"])
    assert done.exit_code == 2 and "give its RUN_DIR" in done.output and not Path("x.tar.gz").exists()


def test_file_that_a_daemon_removes_meanwhile_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--bundle` of a running site failed now and then: `cannot be written (No such file or directory)`."""
    (tmp_path / "run.toml").write_text("kept")
    found = Path.rglob

    def under_way(self: Path, pattern: str) -> Iterator[Path]:
        (self / "payload.tmp").touch()
        yield self / "payload.tmp"
        (self / "payload.tmp").unlink()
        yield from found(self, pattern)

    monkeypatch.setattr(Path, "rglob", under_way)
    assert [line.split() for line in listing(tmp_path)] == [["4", "run.toml"]]
