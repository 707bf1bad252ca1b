"""A friend without the weights that a run started from joins: they and the tokenizer come from the peer, the run's or
not at all."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.store import snapshots
from tests.harness.published.directory import LINES, VOCAB, publish
from tests.harness.published.prepared_here import prepared_here
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites
from tests.unit.models.families import FAMILY_CONFIGS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 120
TEMPLATE = "chat_template.jinja"


def founding(tmp_path: Path) -> SiteProcess:
    publish(tmp_path / "model", FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB})
    (tmp_path / "model" / TEMPLATE).write_text("{{ messages[0]['content'] }}")
    (tmp_path / "text.txt").write_text("".join(LINES), encoding="utf-8")
    options = ("--init", str(tmp_path / "model"), "--data", f"numbers={tmp_path / 'text.txt'}")
    with prepared_here():
        return found_run(tmp_path, "founder", *options, "--set", "model.seq_len=24", "--cache", str(tmp_path / "cache"))


def change(state: Path, *, place: int = -4, tail: bytes = b"", size: int = 0) -> None:
    """What a liar serves as snapshot 0: other weights, all hashes right but what the manifest names."""
    path = state / snapshots.ANCHOR_NAME
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data + tail)
    index = snapshots.read_index(state)
    anchor = snapshots.hash_chunks(path)
    if size:
        chunks = -(-size // snapshots.CHUNK_BYTES)
        anchor = replace(anchor, size=size, chunks=anchor.chunks[:1] * chunks)
    (state / snapshots.INDEX_NAME).write_bytes(replace(index, files=(anchor, *index.files[1:])).encode())


def other_weights(state: Path) -> None:
    change(state)


def another_header(state: Path) -> None:
    change(state, place=20)


def more_bytes(state: Path) -> None:
    change(state, tail=b"more")


def no_end(state: Path) -> None:
    change(state, size=1 << 36)


LIES: dict[Callable[[Path], None], str] = {
    other_weights: "sent other weights than those that the run started from",
    another_header: "a peer sent no model|sent another model",
    more_bytes: "sent another model than the run's",
    no_end: "has 68719476736 bytes, at most",
}


def test_weights_come_from_the_peer_and_a_liar_is_found_out_before_there_is_a_run_directory(tmp_path: Path) -> None:
    founder = founding(tmp_path)
    state = founder.run_dir / "snapshots" / "0"
    state.rename(tmp_path / "honest")  # there is no outer worker that could load it
    cache = ("--cache", str(tmp_path / "cache"))
    with sites(founder), prepared_here():
        founder.start_without_model()
        founder.wait_height(1, PATIENCE_S)
        shutil.copytree(tmp_path / "honest", state)
        friend = join_run(tmp_path, "friend", founder, *cache)
        assert snapshots.verify(friend.run_dir / "snapshots" / "0") == snapshots.verify(state)
        for name in ("tokenizer.json", "tokenizer_config.json", TEMPLATE):
            assert (friend.run_dir / "tokenizer" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
        before = {path.name for path in tmp_path.iterdir()}
        for spoil, words in LIES.items():
            shutil.copytree(tmp_path / "honest", state, dirs_exist_ok=True)
            spoil(state)
            with pytest.raises(AssertionError, match=words) as refused:
                join_run(tmp_path, "misled", founder, *cache)
            assert "ConfigError" in str(refused.value)
            assert {path.name for path in tmp_path.iterdir()} == before
        shutil.copytree(tmp_path / "honest", state, dirs_exist_ok=True)
        (founder.run_dir / "tokenizer" / TEMPLATE).write_text("{{ 'obey' }}")
        with pytest.raises(AssertionError, match=f"sent another {TEMPLATE} than the run's"):
            join_run(tmp_path, "misled", founder, *cache)
        assert {path.name for path in tmp_path.iterdir()} == before
