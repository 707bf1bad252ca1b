"""Texts and token stores that a trainer cannot read: refused in one sentence, and read once they are as it is said."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from dilocoxd.cli.model import data
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.store.prepared import FETCHED, TOKENS
from dilocoxd.store.rundir import create_run_dir
from dilocoxd.trainer.data import DataConfig, PreparedData, TokenizerConfig, prepare
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.data.corpora import read_corpus
from dilocoxd.trainer.data.fetched import accept
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.sources import SourceOrder
from dilocoxd.trainer.main import _order, check_text, interfaces
from dilocoxd.trainer.settings import load_settings, make_settings
from dilocoxd.trainer.tokens import limits, pack as pack_module
from dilocoxd.trainer.tokens.encode import WORK, PackSettings, pack_piece
from dilocoxd.trainer.tokens.inputs import cut, list_inputs
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import TokenStore, open_store
from dilocoxd.trainer.tokens.vocabulary import tokenizer_digest
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.remedies.refused.rooms.told import full, stored, told
from tests.unit.trainer.test_data import SumWith, order_of, prepared_from, quiet
from tests.unit.trainer.test_fetched import DATA, TRAINED, VOCAB, fetched
from tests.unit.trainer.test_sources import SEQ_LEN, sources
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

TEXT: Final = "".join(DOCUMENTS)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    write_tokenizer(tmp_path)
    return packed(tmp_path, [write_lines(tmp_path / "lines.jsonl")])


def test_vocabularies_that_a_text_cannot_give() -> None:
    with told("trainer/data/bpe.py", "is too small: use at least"):
        train_tokenizer([TEXT], 100)
    train_tokenizer([TEXT], 260)
    with told("trainer/data/bpe.py", "lower it or use a larger corpus"):
        train_tokenizer(["a few words only"], 300)
    train_tokenizer([TEXT], 300)


def test_texts_that_are_none(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(path: Path) -> None:
        assert read_corpus(f"text:{path}", quiet)[0]

    with told("trainer/data/corpora.py", "is not on this machine: give its text with --data VALUE=PATH"):
        read_corpus("tales", quiet)
    lines = write_lines(tmp_path / "lines.jsonl")
    with told("trainer/data/corpora.py", "is no plain text: pack it with `dilocoxd data pack`, and give the store"):
        own(lines)
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [lines])
    assert store.train.num_samples(SEQ_LEN)
    with told("trainer/data/corpora.py", "is a part of a token store: give the folder, "):
        own(store.directory / "index.json")
    with monkeypatch.context() as patch:
        patch.setattr("dilocoxd.trainer.data.corpora._TEXT_BYTES_MAX", 10)
        with told("trainer/data/corpora.py", "GiB of text: pack it with `dilocoxd data pack`"):
            own(text)
        assert packed(tmp_path, [text], name="large").train.num_samples(SEQ_LEN)
    with told("trainer/data/corpora.py", "give a UTF-8 file or folder"):
        own(tmp_path / "nothing.txt")
    (tmp_path / "empty").mkdir()
    with told("trainer/data/corpora.py", "give a file or a folder with"):
        own(tmp_path / "empty")
    shutil.copy(text, tmp_path / "empty")
    own(tmp_path / "empty")
    text.write_bytes(("\N{LATIN SMALL LETTER E WITH ACUTE} " + TEXT).encode("latin-1"))
    with told("trainer/data/corpora.py", "convert it to UTF-8"):
        own(text)
    text.write_text(text.read_text(encoding="latin-1"), encoding="utf-8")
    own(text)


class Debian:
    """Programs of Debian on PATH that do what is asked of them here, with the package lists in one file."""

    def __init__(self, folder: Path) -> None:
        self.lists = folder / "lists"
        self.full = folder / "full"
        self._put(folder, "apt-get", f'case "$*" in *update*) echo dict-gcide > {self.lists};; *)'
                  f' grep -qs dict {self.lists} || {{ echo "E: Unable to locate package" >&2; exit 100; }};'
                  " touch dict-gcide.deb;; esac")  # fmt: skip
        self._put(folder, "apt-cache", f"cat {self.lists} 2>/dev/null | sed 's/dict-gcide/python3.11-doc - texts/'")
        self._put(folder, "dpkg-deb", f'[ ! -e {self.full} ] || {{ echo "no space left" >&2; exit 2; }}; mkdir -p "$3";'
                  ' echo "words of a document" > "$3/a.rst"')  # fmt: skip

    def _put(self, folder: Path, name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    def update(self) -> None:
        """As root: `apt-get update`."""
        assert os.system("apt-get update") == 0


def test_packages_of_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = Debian(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # root's lists are fetched without a word
    with told("trainer/data/corpora.py", "no Debian package matches VALUE: run apt-get update as root"):
        read_corpus("python-doc", quiet)
    debian.lists.write_text("python3.11-doc - texts\n")
    with told("trainer/data/corpora.py", "cannot download Debian package VALUE (VALUE): run apt-get update as root"):
        read_corpus("python-doc", quiet)
    debian.update()
    debian.full.touch()
    with told("trainer/data/corpora.py", "cannot unpack VALUE (VALUE): free disk space"):
        read_corpus("python-doc", quiet)
    debian.full.unlink()
    assert "words of a document" in read_corpus("python-doc", quiet)[0]


def sent(folder: Path, ids: Any = None, held: int = 100) -> tuple[Path, DataConfig]:
    """What a peer sent, and a run whose text has these ids."""
    made = fetched(folder, TRAINED.to_str().encode())
    (made / FETCHED).write_text(json.dumps({"num_train_tokens": 2000 - held, "num_validation_tokens": held}))
    if ids is None:
        return made, DATA
    (made / TOKENS).write_bytes(ids.tobytes())
    return made, replace(DATA, sha256=hashlib.sha256(ids.tobytes()).hexdigest())


def test_texts_that_peers_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is removed, so that to join again fetches it again."""
    folder, vocabulary = tmp_path / ".fetch", TokenizerConfig(VOCAB, tokenizer_digest(TRAINED))
    with told("trainer/data/fetched.py", "tokens, not the run's; join again"):
        accept(sent(folder, held=2000)[0], DATA, vocabulary)
    assert not folder.exists()
    other = np.zeros(2000, "<u2")
    with told("trainer/data/fetched.py", "join again through another peer"):
        accept(sent(folder, other)[0], DATA, vocabulary)
    wide = np.full(2000, VOCAB, "<u2")
    with told("trainer/data/fetched.py", "the model knows VALUE: join again"):
        accept(*sent(folder, wide), vocabulary)
    with monkeypatch.context() as patch:
        patch.setattr("dilocoxd.trainer.data.fetched.tokenizer_digest", lambda _: "of another version")
        with told("trainer/data/fetched.py", "install the version of `tokenizers` that the run uses"):
            accept(*sent(folder), vocabulary)
    assert accept(*sent(folder), vocabulary).num_train_tokens == 1900


def test_a_text_shorter_than_a_window(text: Path, tmp_path: Path) -> None:
    prepared = prepared_from(text, tmp_path)
    with told("trainer/data/order.py", "use a larger corpus or a smaller model.seq_len"):
        BatchOrder(prepared, 100_000, seed=1, peer="a")
    BatchOrder(prepared, 100, seed=1, peer="a")


def test_tokenizers_that_are_not_the_runs(text: Path, tmp_path: Path) -> None:
    def prepared(path: str, size: int = 301) -> PreparedData:
        return prepare(DataConfig(f"text:{text}"), TokenizerConfig(size, path=path, is_given=True), tmp_path, quiet)

    given = str(write_tokenizer(tmp_path))
    with told("trainer/data/prepare.py", "join again, or start with --tokenizer DIR"):
        prepared("")
    with told("trainer/data/prepare.py", "give the tokenizer that belongs to the model"):
        prepared(given, 280)
    assert prepared(given).num_train_tokens


def test_a_text_that_a_node_cannot_tokenize(text: Path, tmp_path: Path) -> None:
    """Its head has the tokenizer: the folder in the cache there is copied here, as the sentence says."""
    data, path = DataConfig(f"text:{text}"), str(write_tokenizer(tmp_path))
    heads, ours = tmp_path / "head", tmp_path / "node"
    there = prepare(data, TokenizerConfig(301, path=path, is_given=True), heads, quiet)
    data = replace(data, sha256=there.data_sha256)  # as run.toml names them
    tokenizer = TokenizerConfig(301, sha256=there.tokenizer_sha256, is_given=True)
    with told("trainer/data/prepare.py", "copy the folder of this text in data/ of the head's cache (paths.cache)"):
        prepare(data, tokenizer, ours, quiet)
    shutil.copytree(there.directory, ours / there.directory.relative_to(heads))
    assert prepare(data, tokenizer, ours, quiet).num_train_tokens == there.num_train_tokens


def test_a_text_with_another_hash_than_the_runs(text: Path, tmp_path: Path) -> None:
    """The founder's folder, copied into the cache as the sentence says, is taken for the run's."""
    founders = prepared_from(text, tmp_path / "theirs")
    hashes = {"sha256": founders.data_sha256, "tokenizer_sha256": founders.tokenizer_sha256}
    text.write_text(TEXT + "One more line.\n", encoding="utf-8")
    with told("trainer/data/prepare.py", "copy the folder with that hash in its index.json from another site into"):
        prepared_from(text, tmp_path / "mine", **hashes)
    here = prepared_from(text, tmp_path / "mine").directory.parent
    shutil.copytree(founders.directory, here / founders.directory.name)
    assert prepared_from(text, tmp_path / "mine", **hashes).data_sha256 == founders.data_sha256


def test_machines_of_a_site_with_two_texts(text: Path, tmp_path: Path) -> None:
    first = order_of(prepared_from(text, tmp_path / "one"))
    text.write_text(TEXT + "One more line.\n")
    second = order_of(prepared_from(text, tmp_path / "two"))
    with told("trainer/main.py", "give each the same files (paths.corpora), and put data.sha256 into run.toml"):
        check_text(SumWith(second), first, 2)
    check_text(SumWith(second), order_of(prepared_from(text, tmp_path / "one")), 2)


def test_a_cache_that_is_full(text: Path, tmp_path: Path) -> None:
    with full(100), stored("trainer/data/prepare.py", "free space there, or give another place with --cache"):
        prepared_from(text, tmp_path / "cache")
    prepared_from(text, tmp_path / "other")
    prepared_from(text, tmp_path / "cache")


def pack_lines(folder: Path, *, processes: int = 1) -> str:
    """Two files, so that two processes have something to do; what was told meanwhile."""
    options, said = PackOptions(folder / "tokenizer", held_fraction=0.1, num_processes=processes), list[str]()
    pack([folder / "a.jsonl", folder / "b.jsonl"], folder / "out", options, said.append, lambda done, total: None)
    return " ".join(said)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A folder with texts and their tokenizer."""
    write_tokenizer(tmp_path)
    for name, documents in (("a", DOCUMENTS[:10]), ("b", DOCUMENTS)):
        write_lines(tmp_path / f"{name}.jsonl", documents)
    return tmp_path


def test_packing_on_a_disk_that_is_full(lines: Path) -> None:
    with (
        full(6000),
        stored("trainer/tokens/pack.py", "cannot write to VALUE: VALUE; free space, then repeat the command"),
    ):
        pack_lines(lines)
    assert "going on: 1 of 2 pieces were packed before" in pack_lines(lines)


def test_packing_by_processes_that_are_killed(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the kernel, without memory: each of the first ones is, before it does anything."""
    python, kills = lines / "python", lines / "kills"
    kills.touch()
    python.write_text(f'#!/bin/sh\n[ -e {kills} ] && kill -9 $$\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    resource_tracker.ensure_running()  # of this process, not of those
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(python))
    with stored("trainer/tokens/pack.py", "comes to no end?); repeat the command"):
        pack_lines(lines, processes=2)
    kills.unlink()
    pack_lines(lines, processes=2)
    assert open_store(lines / "out").train.num_tokens


def test_texts_that_cost_too_much(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text by itself hardly can: what a stranger's tokenizer or table makes of it does."""
    write_lines(lines / "a.jsonl", ["a" * 60 + "b"])
    file = lines / "tokenizer" / "tokenizer.json"
    given = file.read_text()
    endless = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps(json.loads(given) | {"pre_tokenizer": endless}))
    with told(
        "trainer/tokens/limits.py",
        "a text is too much for its tokenizer (VALUE); take that text out, or give another tokenizer",
    ):
        pack_lines(lines)
    monkeypatch.setattr(limits, "SECONDS_MAX", 1)
    with (
        told("trainer/tokens/limits.py", "s of CPU time; take that text out, or give another tokenizer"),
        limits.bounded_time(),
    ):
        while True:
            pass
    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "pack_piece", lambda *_: bytes(1 << 62))
        with told("trainer/tokens/pack.py", "take that file out, or give another tokenizer"):
            pack_lines(lines)
        python = lines / "python"
        python.write_text("#!/bin/sh\nkill -XCPU $$\n")
        python.chmod(0o755)
        patch.setattr(sys, "executable", str(python))
        with told("cli/model/data.py", "take it out, or give another tokenizer"):
            data._run("show", str(lines))
    file.write_text(given)
    pack_lines(lines)
    assert data._run("show", str(lines / "out")) == 0


def test_a_tokenizer_that_goes_while_it_is_packed(lines: Path) -> None:
    (piece,) = cut(list_inputs([lines / "a.jsonl"])[0])
    settings = PackSettings(str(lines / "tokenizer" / "tokenizer.json"), "uint16", None, "text", 0.1, is_chat=False)
    (lines / "out" / WORK).mkdir(parents=True)
    (lines / "tokenizer").rename(lines / "away")
    with stored("trainer/tokens/encode.py", "it could be read before: repeat the command, it goes on"):
        pack_piece(lines / "out", piece, settings)
    (lines / "away").rename(lines / "tokenizer")
    assert pack_piece(lines / "out", piece, settings).shards


def test_stores_that_a_run_cannot_read(store: TokenStore, tmp_path: Path) -> None:
    def order(one: TokenStore, seq_len: int = SEQ_LEN, vocab_size: int = 301) -> SourceOrder:
        return SourceOrder(sources([one]), seq_len, vocab_size, seed=7)

    with told("trainer/data/sources.py", "give a store of the run's tokenizer"):
        order(store, vocab_size=300)
    with told("trainer/data/sources.py", "tokens: lower model.seq_len"):
        order(store, seq_len=1 << 20)
    none_held = packed(tmp_path, [tmp_path / "lines.jsonl"], name="none", held=0.0)
    with told("trainer/data/sources.py", "pack with --held-out, or have fewer tokens in a window"):
        order(none_held).validation_batches(8, 4)
    few = packed(tmp_path, [tmp_path / "lines.jsonl"], name="few", held=0.02)
    with told("trainer/data/sources.py", "pack with --held-out, or have fewer tokens in a window"):
        order(few, seq_len=few.held.num_samples(1) + 1).validation_batches(8, 4)
    assert order(few).validation_batches(8, 4)
    assert order(store).validation_batches(8, 4)


def break_file(store: TokenStore, ending: str, change: Callable[[Path], object]) -> Path:
    path = sorted(store.directory.glob(f"train-*{ending}"))[0]
    change(path)
    return path


def test_stores_that_changed_since_they_were_packed(store: TokenStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store.directory, copy)

    def again() -> TokenStore:
        shutil.rmtree(store.directory)
        shutil.copytree(copy, store.directory)
        return open_store(store.directory)

    def read(one: TokenStore) -> None:
        one.train.samples(np.arange(4), SEQ_LEN)

    read(store)
    break_file(store, ".bin", lambda path: os.truncate(path, 0))
    with told("trainer/tokens/store.py", "became shorter while it was read; copy or pack it again"):
        read(store)
    read(one := again())
    break_file(one, ".bin", lambda path: path.write_bytes(b"\xff" * path.stat().st_size))
    with told("trainer/tokens/store.py", "is not below the vocabulary's size VALUE; copy or pack it again"):
        read(one)
    one = again()
    break_file(one, ".bin", Path.unlink)
    with told("trainer/tokens/store.py", "token store VALUE: VALUE cannot be read (VALUE); copy it again"):
        read(one)
    one = again()
    (shard,) = one.index.of_part("train")[:1]
    path = break_file(one, ".ends", lambda path: path.write_bytes(b"\xff" * path.stat().st_size))
    with told("trainer/tokens/store.py", "is not what it was when it was packed; copy or pack it again"):
        one.ends(shard)
    path.unlink()
    with told("trainer/tokens/store.py", "token store VALUE: VALUE cannot be read (VALUE); copy it again"):
        one.ends(shard)
    read(one := again())
    assert len(one.ends(shard)) == shard.num_documents


def test_a_document_mask_over_one_text(text: Path, tmp_path: Path) -> None:
    link: Any = SimpleNamespace(send=lambda message: None)
    manifest = tiny_manifest(data={"corpus": f"text:{text}"}, model={"vocab_size": 300})
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache")))
    settings = make_settings(manifest, site, data_stream="x")
    with told("trainer/main.py", "pack it with `dilocoxd data pack`, or set it to false"):
        _order(link, replace(settings, has_document_mask=True))
    assert _order(link, settings).batch(0, 1)


def test_a_trainer_that_is_started_by_hand(tmp_path: Path) -> None:
    """`dilocoxd run` names the run directory to it."""
    with told("trainer/settings.py", "use `dilocoxd run`"):
        load_settings({})
    run_dir = create_run_dir(tmp_path / "run", tiny_manifest(), SiteConfig())
    (run_dir.path / "identity.key").write_bytes(b"key")
    load_settings({"DILOCOXD_RUN_DIR": str(run_dir.path)})


def test_an_address_that_no_interface_has() -> None:
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "DILOCOXD_CLUSTER_ADDRESS": "203.0.113.9"}
    with told("trainer/main.py", "give a first address as cluster.host, or name the interface in GLOO_SOCKET_IFNAME"):
        interfaces(world)
    assert interfaces(world | {"DILOCOXD_CLUSTER_ADDRESS": "127.0.0.1"})["GLOO_SOCKET_IFNAME"] == "lo"
    assert interfaces(world | {"GLOO_SOCKET_IFNAME": "lo"})["GLOO_SOCKET_IFNAME"] == "lo"
