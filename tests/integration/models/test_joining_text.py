"""A friend who has neither the founder's text nor its path joins: the text comes from the peer, whole or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dilocoxd.store.prepared import TOKENS, find_prepared
from dilocoxd.store.rundir import open_run_dir
from tests.harness.running.run_directories import common_options, found_run, free_port, link_of
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 60


def write_notes(folder: Path) -> Path:
    """Text of the founder's own, beside a file that is no text."""
    notes = folder / "my notes"
    notes.mkdir()
    (notes / "a.txt").write_text("".join(f"Note {n} says that {n} and {n} make {2 * n}.\n" for n in range(40_000)))
    (notes / "b.jsonl").write_text("{}\n")
    return notes


def join(folder: Path, name: str, through: SiteProcess, *options: str) -> subprocess.CompletedProcess[str]:
    """`dilocoxd join` as a friend types it, with a cache of its own."""
    address = wait_until(lambda: through.status().get("join_address"), "a join address", PATIENCE_S, through.describe)
    command = [
        sys.executable,
        "-m",
        "dilocoxd",
        "join",
        link_of(through.run_dir, address),
        "--no-run",
        "--cache",
        str(folder / f"{name}-cache"),
    ]
    return subprocess.run(
        [*command, *common_options(folder / name, free_port()), *options], capture_output=True, text=True, check=False
    )


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def test_text_comes_from_the_peer_by_its_hash(tmp_path: Path) -> None:
    notes = write_notes(tmp_path)
    founder = found_run(tmp_path, "founder", "--cache", str(tmp_path / "cache"), "--data", f"notes={notes}")
    manifest, site = open_run_dir(founder.run_dir).load()
    assert (manifest.data.corpus, site.paths.corpora) == ("notes", {"notes": str(notes)})
    assert str(tmp_path) not in manifest.to_toml()
    ours = find_prepared(tmp_path / "cache", manifest.data.sha256, manifest.tokenizer.sha256)
    assert ours is not None
    with sites(founder):
        founder.start_without_model()
        done = join(tmp_path, "friend", founder)
        assert done.returncode == 0, done.stderr
        theirs = find_prepared(tmp_path / "friend-cache", manifest.data.sha256, manifest.tokenizer.sha256)
        assert theirs is not None
        assert (theirs / TOKENS).read_bytes() == (ours / TOKENS).read_bytes()
        assert json.loads((theirs / "index.json").read_text()) == {
            **json.loads((ours / "index.json").read_text()), "source": "a peer",
        }  # fmt: skip

        small = join(tmp_path, "small", founder, "--set", "paths.corpus_bytes_max=1000")
        assert small.returncode == 78
        assert "paths.corpus_bytes_max = 1000: raise it with --set" in small.stderr
        closed = join(tmp_path, "closed", founder, "--set", "paths.corpus_bytes_max=0")
        assert closed.returncode == 78
        assert "give it with --data notes=PATH" in closed.stderr
        remedied = join(tmp_path, "closed", founder, "--set", "paths.corpus_bytes_max=0", "--data", f"notes={notes}")
        assert remedied.returncode == 0, remedied.stderr
        assert "left out: 1 files *.jsonl" in remedied.stderr

        flip_a_bit(ours / TOKENS)
        lied_to = join(tmp_path, "lied-to", founder)
        assert lied_to.returncode == 78
        assert "sent another text than the run's" in lied_to.stderr
        assert not (tmp_path / "lied-to").exists()
        assert not list((tmp_path / "small").glob("*"))
