"""Wrong data: one sentence that names it and says what to do, status 78, and nothing is left behind."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.commands import created_from, new_manifest, own_text
from dilocoxd.cli.corpus import (
    _read_index,
    require_documents,
    require_enough,
    require_there,
    with_text_hashes,
)
from dilocoxd.cli.joining.text import given_text
from dilocoxd.cli.main import cli
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import create_run_dir
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.trainer.data.corpora import TEXT_PREFIX, read_corpus
from dilocoxd.trainer.tokens.__main__ import main
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

Make = Callable[[Path], object]


def write(name: str, data: bytes) -> Make:
    """A folder with a good file and this one; without a name an empty folder."""

    def make(path: Path) -> None:
        path.mkdir()
        if name:
            (path / "a.txt").write_text("good\n" * 100)
            (path / name).write_bytes(data)

    return make


def link_to_itself(path: Path) -> None:
    """Stands for a file that cannot be opened: modes do not keep root out."""
    path.mkdir()
    (path / "a.txt").write_text("good\n" * 100)
    (path / "b.txt").symlink_to("b.txt")


FOLDERS: list[tuple[str, Make, str, str]] = [
    ("empty", write("", b""), "no file to pack; give .txt", "no text in"),
    ("pictures", lambda path: (path.mkdir(), (path / "a.png").write_bytes(b"PNG")), "no file to pack", "no text in"),
    ("binary", write("b.txt", b"\xff\xfe\x01" * 99), "b.txt: not UTF-8 near byte 0; convert", "b.txt: not UTF-8 near"),
    ("zeros", write("b.txt", b"ab\0c" * 99), "b.txt: byte 2 is zero, so this is no text", "b.txt: byte 2 is zero"),
    ("latin-1", write("b.txt", b"caf\xe9\n"), "b.txt: not UTF-8 near byte 3; convert", "b.txt: not UTF-8 near byte 3"),
    ("dangling", link_to_itself, "b.txt: cannot be read (Too many", "b.txt (Too many"),
    ("missing", lambda path: None, "there is no such file or folder; give", "No such file"),
]


@pytest.mark.parametrize(("make", "packing", "reading"), [row[1:] for row in FOLDERS], ids=[row[0] for row in FOLDERS])
def test_folder_that_is_no_text_is_refused(
    make: Make, packing: str, reading: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(tmp_path)
    make(tmp_path / "in")
    options = ["pack", "--processes", "1", "--tokenizer", str(tmp_path / "tokenizer")]
    assert main([*options, str(tmp_path / "in"), str(tmp_path / "out")]) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert packing in last
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError) as caught:
        read_corpus(f"{TEXT_PREFIX}{tmp_path / 'in'}", lambda _: None)
    assert reading in str(caught.value)


def test_broken_line_is_named_and_its_mending_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(tmp_path)
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "good"}\n{"text": "bad\n')
    command = [
        "pack",
        "--processes",
        "1",
        "--tokenizer",
        str(tmp_path / "tokenizer"),
        str(lines),
        str(tmp_path / "out"),
    ]
    assert main(command) == 78
    assert "a.jsonl, line 2: not JSON" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    lines.write_text('{"text": "good"}\n{"text": "mended"}\n')
    assert main(command) == 0


def test_lines_of_json_are_not_read_as_plain_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pack it with `dilocoxd data pack`"):
        read_corpus(f"{TEXT_PREFIX}{write_lines(tmp_path / 'a.jsonl')}", lambda _: None)


@pytest.mark.parametrize(
    ("documents", "held", "said"),
    [
        (["One short line."], 0.0, "no window of 33 tokens"),
        (["A line that is long enough for a window or two, but for no batch. " * 2], 0.0, "less than one batch of 4"),
        (DOCUMENTS, 0.0, "is held out for validation; pack again with a larger --held-out"),
    ],
)
def test_store_that_cannot_fill_a_batch_is_refused(
    documents: list[str], held: float, said: str, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl", documents)], held=held)
    manifest, stores = own_text(new_manifest("tiny", {}), {"data": (f"x={store.directory}",)})
    with pytest.raises(ConfigError) as caught:
        require_enough(manifest, stores)
    assert said in str(caught.value)


def test_index_of_a_store_is_read_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    lines = [write_lines(tmp_path / "a.jsonl")]
    store = packed(tmp_path, lines, held=0.1)
    before = _read_index.cache_info().misses
    manifest, stores = own_text(new_manifest("tiny", {}), {"data": (f"x={store.directory}",)})
    require_enough(manifest, stores)
    require_there(manifest, SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=stores)))
    assert _read_index.cache_info().misses == before + 1
    (store.directory / "index.json").write_text('{"shards": []}')
    with pytest.raises(ConfigError, match=r"index\.json is damaged"):
        require_enough(manifest, stores)


def test_nothing_held_out_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """By `run` and `join`, which know the run already, and by `start` where --data does not name the store."""
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")], held=0.0)
    said = "x: nothing of 33 tokens is held out for validation"
    manifest, corpora = own_text(new_manifest("tiny", {}), {"data": (f"x={store.directory}",)})
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))
    with pytest.raises(ConfigError, match=said):
        require_there(manifest, site)
    with pytest.raises(ConfigError, match=said):
        given_text(manifest, site).bring(Access(("unused",), 1.0, print))
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    known = (f'paths.corpora={{x = "{store.directory}"}}',)
    with pytest.raises(ConfigError, match=said):
        created_from(str(tmp_path / "run.toml"), str(tmp_path / "run"), known, {}, lambda made, site, tokenizer: made)
    assert not (tmp_path / "run").exists()
    silent = manifest.model_copy(update={"data": manifest.data.model_copy(update={"evaluate_every_rounds": 0})})
    require_there(silent, site)
    require_enough(silent, corpora)


def test_run_whose_stores_nobody_named_is_not_started(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")])
    manifest, _ = own_text(new_manifest("tiny", {}), {"data": (f"x={store.directory}",)})
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    command = ["start", str(tmp_path / "run.toml"), "--tokenizer", str(tmp_path / "tokenizer"), "--port", "0"]
    command += ["--dir", str(tmp_path / "run"), "--api-port", "0", "--host", "127.0.0.1"]
    with pytest.raises(ConfigError, match="say where it is with --data x=PATH"):
        CliRunner().invoke(cli, command, standalone_mode=False, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


def test_check_config_finds_a_store_that_is_gone(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")], held=0.1)
    manifest, corpora = own_text(new_manifest("tiny", {}), {"data": (f"x={store.directory}",)})
    run_dir = create_run_dir(tmp_path / "run", manifest, SiteConfig(paths=PathsSection(corpora=corpora)))
    command = ["check-config", str(run_dir.path)]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert not done.return_value, done.output
    Path(store.directory).rename(tmp_path / "elsewhere")
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert done.return_value == 78
    assert "this is no token store" in done.output


def test_text_that_cannot_fill_a_batch_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("".join(f"Number {i} is said.\n" for i in range(300)))
    changes = {"model": {"vocab_size": 260, "seq_len": 2048}}
    manifest, corpora = own_text(new_manifest("tiny", changes), {"data": (f"x={text}",)})
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))
    with pytest.raises(ConfigError, match="less than one batch of 4 x 2048"):
        with_text_hashes(manifest, site)


def test_known_run_whose_data_is_gone_is_not_started(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")])
    manifest, corpora = own_text(new_manifest("tiny", {}), {"data": (f"x={store.directory}",)})
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))
    require_there(manifest, site)
    store.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"--data x=.*store: this is no token store"):
        require_there(manifest, site)
    text = tmp_path / "a.txt"
    text.write_text("text\n")
    manifest, corpora = own_text(new_manifest("tiny", {}), {"data": (f"x={text}",)})
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))
    require_there(manifest, site)
    text.unlink()
    with pytest.raises(ConfigError, match=r"cannot be read at .*No such file.*; say where it is with --data x=PATH"):
        require_there(manifest, site)
    assert json.loads((tmp_path / "elsewhere" / "index.json").read_bytes())["shards"]


def test_document_mask_without_documents_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")])
    masked = ("data.document_mask=true",)
    with pytest.raises(ConfigError, match=r"data.document_mask = true keeps .* but the run trains on one text"):
        created_from("tiny", str(tmp_path / "run"), masked, {}, lambda made, site, tokenizer: made)
    manifest, corpora = own_text(
        new_manifest("tiny", {"data": {"document_mask": True}}), {"data": (f"x={store.directory}",)}
    )
    require_documents(manifest, corpora)
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))
    require_there(manifest, site)
    (store.directory / "index.json").write_bytes(replace(store.index, eos=None).canonical_bytes())
    changed, corpora = own_text(
        new_manifest("tiny", {"data": {"document_mask": True}}), {"data": (f"x={store.directory}",)}
    )
    for refuse in (lambda: require_documents(changed, corpora), lambda: require_there(changed, site)):
        with pytest.raises(ConfigError, match="documents end with one token, but these have x: none"):
            refuse()
    assert not (tmp_path / "run").exists()


def test_document_mask_is_no_wrong_where_run_toml_names_stores_that_are_not_here(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")])
    masked = new_manifest("tiny", {"data": {"document_mask": True}})
    named, corpora = own_text(masked, {"data": (f"x={store.directory}",)})
    require_documents(named, {})
    (tmp_path / "run.toml").write_text(named.to_toml())
    run_dir = created_from(
        str(tmp_path / "run.toml"), str(tmp_path / "run"), (), {}, lambda made, site, tokenizer: made
    )
    manifest, site = run_dir.load()
    with pytest.raises(ConfigError, match="nothing says where"):
        require_there(manifest, site)
    require_there(manifest, SiteConfig(paths=PathsSection(corpora=corpora)))


def test_run_without_a_document_mask_has_the_bytes_of_before() -> None:
    manifest = new_manifest("tiny", {})
    assert b"document_mask" not in manifest.canonical_bytes()
    assert b'"document_mask":true' in new_manifest("tiny", {"data": {"document_mask": True}}).canonical_bytes()
