"""Packing: every document is in the store once, whatever the kind of file, the processes, and the kills in between."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer

from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.trainer.tokens import inputs, pack as packing
from dilocoxd.trainer.tokens.encode import WORK, PackSettings, is_held_out, pack_piece
from dilocoxd.trainer.tokens.inputs import TextPiece, cut, documents, list_inputs
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import HELD, TRAIN, TokenStore, open_store
from tests.unit.trainer.tokens.shard_ids import ids_of
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def texts_of(store: TokenStore, part: str) -> list[str]:
    """The documents of a part, decoded."""
    tokenizer = Tokenizer.from_file(str(store.directory / "tokenizer.json"))
    found = []
    for shard in store.index.of_part(part):
        start = 0
        for end in store.ends(shard):
            ids = ids_of(store, shard, start, int(end) - start)
            assert ids[-1] == store.index.eos
            found.append(tokenizer.decode(ids[:-1].tolist()))
            start = int(end)
        assert start == shard.num_tokens
    return found


def test_every_document_is_there_once_and_ends_with_the_end_token(folder: Path) -> None:
    store = packed(folder, [write_lines(folder / "a.jsonl")])
    assert texts_of(store, TRAIN) == [text for text in DOCUMENTS if not is_held_out(text, 0.1)]
    assert texts_of(store, HELD) == [text for text in DOCUMENTS if is_held_out(text, 0.1)]
    assert 0.03 < len(texts_of(store, HELD)) / len(DOCUMENTS) < 0.2


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": DOCUMENTS}), path, row_group_size=40)


def write_arrow(path: Path) -> None:
    table = pyarrow.table({"text": DOCUMENTS})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


def write_gzip(path: Path) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)


@pytest.mark.parametrize(
    ("name", "write"), [("a.parquet", write_parquet), ("data.arrow", write_arrow), ("a.jsonl.gz", write_gzip)]
)
def test_all_kinds_of_files_give_the_same_tokens(folder: Path, name: str, write: object) -> None:
    (folder / "in").mkdir()
    assert callable(write)
    write(folder / "in" / name)
    expected = packed(folder, [write_lines(folder / "a.jsonl")], name="lines")
    store = packed(folder, [folder / "in"])
    assert texts_of(store, TRAIN) == texts_of(expected, TRAIN)
    assert texts_of(store, HELD) == texts_of(expected, HELD)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(inputs, "PIECE_BYTES", 3000)
    yield


@pytest.mark.usefixtures("small_pieces")
def test_pieces_have_every_line_once(folder: Path) -> None:
    pieces = cut(list_inputs([write_lines(folder / "a.jsonl")])[0])
    assert len(pieces) > 10
    assert [text for piece in pieces for text in documents(piece, "text")] == DOCUMENTS


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("text", ["".join(DOCUMENTS), "\N{EURO SIGN}" * 9000])
def test_pieces_of_a_long_text_are_the_text(folder: Path, text: str) -> None:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    pieces = cut(list_inputs([folder / "a.txt"])[0])
    assert len(pieces) > 5
    assert "".join(found for piece in pieces for found in documents(piece, "text")) == text


def command(folder: Path, source: Path, out: str) -> list[str]:
    tool = [sys.executable, "-m", "dilocoxd.trainer.tokens", "pack", "--tokenizer", str(folder / "tokenizer")]
    return [*tool, "--processes", "2", str(source), str(folder / out)]


def test_no_process_is_started_where_one_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ProcessPoolExecutor", None)  # whoever needs it fails
    lines = write_lines(folder / "a.jsonl")
    one_piece = packed(folder, [lines], processes=4)
    monkeypatch.setattr(inputs, "PIECE_BYTES", 3000)
    one_process = packed(folder, [lines], name="pieces")
    assert len(one_process.index.of_part(TRAIN)) > 5
    assert texts_of(one_process, TRAIN) == texts_of(one_piece, TRAIN)


def open_below(folder: Path) -> list[str]:
    """Files of it that this process has open; of others some may go at any moment."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this look
            found.append(str(entry.readlink()))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_piece_that_cannot_be_packed_leaves_no_file_open(folder: Path) -> None:
    lines = folder / "a.jsonl"
    lines.write_text('{"text": "x"}\nno JSON\n')
    with pytest.raises(ConfigError) as failed:
        packed(folder, [lines])
    assert not open_below(folder), failed.value  # the frames that it holds are still there


@pytest.mark.slow
def test_killed_packing_goes_on_and_gives_the_same_store(folder: Path) -> None:
    source = folder / "in"
    source.mkdir()
    for number in range(24):
        write_lines(source / f"{number:02d}.jsonl", DOCUMENTS * 3)
    out = folder / "killed"
    process = subprocess.Popen(command(folder, source, "killed"), start_new_session=True)
    while not list((out / WORK).glob("0*.json")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list((out / WORK).glob("0*.json")))
    assert 0 < done < 24
    again = subprocess.run(command(folder, source, "killed"), capture_output=True, text=True, check=True)
    assert "pieces were packed before" in again.stderr
    whole = packed(folder, [source], name="whole", held=0.01)
    assert json.loads(again.stdout.splitlines()[-1])["sha256"] == whole.index.sha256()


def test_file_that_cannot_be_read_for_now_costs_nothing_that_was_packed(folder: Path) -> None:
    """Its mount is gone once the inputs are listed, and comes back."""
    (folder / "in").mkdir()
    for name in ("a", "b"):
        write_lines(folder / "in" / f"{name}.jsonl")
    away, said = folder / "b.jsonl", list[str]()

    def take_away(done: int, total: int) -> None:
        if not away.exists():
            (folder / "in" / "b.jsonl").rename(away)

    options = PackOptions(folder / "tokenizer", held_fraction=0.1)
    with pytest.raises(StoreError, match=r"b\.jsonl: cannot be read now \(No such file.*repeat the command"):
        pack([folder / "in"], folder / "out", options, said.append, take_away)
    assert [path.name for path in (folder / "out" / WORK).glob("0*.json")] == ["00000.json"]
    away.rename(folder / "in" / "b.jsonl")
    pack([folder / "in"], folder / "out", options, said.append, lambda done, total: None)
    assert "going on: 1 of 2 pieces were packed before" in said
    assert texts_of(open_store(folder / "out"), TRAIN) == texts_of(packed(folder, [folder / "in"]), TRAIN)


@pytest.mark.parametrize("is_chat", [False, True], ids=["text", "chat"])
def test_tokenizer_that_cannot_be_read_for_now_costs_nothing_that_was_packed(is_chat: bool, folder: Path) -> None:
    """Whoever packs has read it before: only a ConfigError removes the pieces."""
    (folder / "out" / WORK).mkdir(parents=True)
    (piece,) = cut(list_inputs([write_lines(folder / "a.jsonl")])[0])
    gone = PackSettings(str(folder / "gone" / "tokenizer.json"), "uint16", 0, "text", 0.1, is_chat)
    with pytest.raises(StoreError, match=r"gone.*repeat the command, it goes on"):
        pack_piece(folder / "out", piece, gone)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_refusal_of_the_system_is_not_taken_for_a_wrong_file(name: str, tmp_path: Path) -> None:
    piece = TextPiece(0, tmp_path / name, "".join(Path(name.removesuffix(".gz")).suffixes), 0, 1, 1)
    with pytest.raises(StoreError, match="repeat the command, it goes on"):
        list(documents(piece, "text"))


@pytest.mark.parametrize("cut", [range(40, 60), range(-9, 0)], ids=["damaged", "cut off"])
def test_damaged_gzip_is_a_wrong_file(cut: range, tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    data = bytearray(gzip.compress("\n".join(DOCUMENTS).encode()))
    if cut.start > 0:
        data[cut.start : cut.stop] = bytes(255 - byte for byte in data[cut.start : cut.stop])
    path.write_bytes(data if cut.start > 0 else data[: cut.start])
    with pytest.raises(ConfigError, match=r"a\.txt\.gz: cannot be read .*; give a readable file"):
        list(documents(TextPiece(0, path, ".txt", 0, 1, 1), "text"))


def refused(folder: Path, paths: list[Path], **changes: object) -> str:
    """The sentence with which packing is refused."""
    options = PackOptions(**{"tokenizer": folder / "tokenizer", **changes})  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        pack(paths, folder / "out", options, lambda text: None, lambda done, total: None)
    return str(caught.value)


def test_wrong_inputs_are_refused_in_one_sentence(folder: Path) -> None:
    lines = write_lines(folder / "a.jsonl")
    (folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": \n')
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "a.png").write_bytes(b"PNG")
    (folder / "wide.jsonl").write_bytes('{"text": "good"}\n'.encode("utf-16"))
    (folder / "unmarked.jsonl").write_bytes('{"text": "good"}\n'.encode("utf-16-le"))
    (folder / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    for name in ("wide", "unmarked", "latin"):
        said = refused(folder, [folder / f"{name}.jsonl"])
        assert f"{name}.jsonl, line 1: not UTF-8" in said and "convert the file to UTF-8" in said
    (folder / "torn.jsonl").write_bytes(b'{"text": "good"}\n\0\0\0\n')
    assert "torn.jsonl, line 2: not JSON" in refused(folder, [folder / "torn.jsonl"])
    for name, indent in (("one", None), ("many", 1)):
        (folder / f"{name}.jsonl").write_text("\n" + json.dumps([{"text": "good"}], indent=indent))
        said = refused(folder, [folder / f"{name}.jsonl"])
        assert f"{name}.jsonl, line 2: a list begins here; write each of its elements on a line of its own" in said
    assert "choose with --field" in refused(folder, [lines], field="body")
    (folder / "chats.jsonl").write_text('{"messages": []}\n')
    assert "line 1: no text in field 'text', but messages; pack conv" in refused(folder, [folder / "chats.jsonl"])
    assert "bad.jsonl, line 2: not JSON" in refused(folder, [folder / "bad.jsonl"])
    assert "not UTF-8 near byte 3" in refused(folder, [folder / "latin.txt"])
    assert "cannot be packed; give .txt" in refused(folder, [folder / "a.png"])
    assert "there is no such file" in refused(folder, [folder / "none.txt"])
    assert "no tokenizer" in refused(folder, [lines], tokenizer=folder / "a.png")
    assert "no token '<end>'" in refused(folder, [lines], eos="<end>")
    one = write_lines(folder / "one.jsonl", ["alone"])
    assert "all documents are held out; lower --held-out" in refused(folder, [one], held_fraction=0.9999)
    blank = write_lines(folder / "blank.jsonl", ["", ""])
    assert "no text to train on in these files (left out: 2 empty documents)" in refused(folder, [blank])


def test_lines_as_other_systems_write_them_are_read(tmp_path: Path) -> None:
    """A mark at the beginning, also of a line without anything else, blank lines, CRLF, and characters of all kinds."""
    texts = ["Gr\u00fc\u00dfe \U0001f389 \u0000 \u6f22\u5b57", "half a \ud800 pair", "x" * 200_000]
    path = tmp_path / "a.jsonl"
    for before in ("\ufeff", "\ufeff\r\n", "\r\n  \r\n"):
        lines = [
            json.dumps({"text": texts[0]}, ensure_ascii=False),
            "",
            *(json.dumps({"text": one}) for one in texts[1:]),
        ]
        path.write_bytes((before + "\r\n".join(lines)).encode())
        found = list(documents(TextPiece(0, path, ".jsonl", 0, path.stat().st_size, 1), "text"))
        assert found == [texts[0], "half a ? pair", texts[2]]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables_without_a_text_are_refused_in_one_sentence(name: str, folder: Path) -> None:
    def write(table: pyarrow.Table) -> list[Path]:
        path = folder / name
        if name == "a.parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=2)
        else:
            with pyarrow.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
        return [path]

    paths = write(pyarrow.table({"content": ["a"], "title": ["b"]}))
    assert f"{name}: no column 'text'; columns: content, title; choose with --field" in refused(folder, paths)
    paths = write(pyarrow.table({"text": ["a", "b", "c", None]}))
    assert f"{name}: row 4 has no text in 'text'; fill or remove it" in refused(folder, paths)
    assert not (folder / "out").exists()


def test_unfinished_packing_of_other_inputs_is_kept(folder: Path) -> None:
    (folder / "out" / WORK).mkdir(parents=True)
    (folder / "out" / WORK / "plan.json").write_text("{}")
    assert "other inputs or options; repeat that command" in refused(folder, [write_lines(folder / "a.jsonl")])
    assert (folder / "out" / WORK / "plan.json").exists()


def test_files_that_are_left_out_are_named(folder: Path) -> None:
    (folder / "in").mkdir()
    write_lines(folder / "in" / "a.jsonl")
    (folder / "in" / "picture.png").write_bytes(b"PNG")
    said: list[str] = []
    pack([folder / "in"], folder / "out", PackOptions(folder / "tokenizer"), said.append, lambda done, total: None)
    assert said == ["left out: 1 files *.png, which are no text that can be packed"]


def test_finished_store_is_not_packed_over(folder: Path) -> None:
    lines = write_lines(folder / "a.jsonl")
    packed(folder, [lines], name="out")
    assert "is a finished token store" in refused(folder, [lines])


def test_tokenizer_that_cuts_and_pads_loses_no_text(folder: Path) -> None:
    """Some tokenizer.json say how long the texts of their own model were."""
    file = folder / "tokenizer" / "tokenizer.json"
    expected = packed(folder, [write_lines(folder / "a.jsonl", [*DOCUMENTS, "caf\xe9 " * 40])], name="plain")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(file))
    found = packed(folder, [folder / "a.jsonl"], name="cutting")
    assert [shard.sha256 for shard in found.index.shards] == [shard.sha256 for shard in expected.index.shards]
