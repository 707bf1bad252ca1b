"""What `dilocoxd data` refuses, and what it says to do: done, and it packs, adopts or shows."""

import os
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens import chat, folders, limits
from dilocoxd.trainer.tokens.__main__ import EXIT_FAILED, main
from dilocoxd.trainer.tokens.encode import WORK
from tests.remedies.refused.rooms.told import says
from tests.remedies.refused.rows import Row
from tests.remedies.refused.rows_packing import PACK, PACKING_ROWS, WHOLE
from tests.unit.trainer.tokens.test_chat import CHATS, FORGETFUL, PLAIN, save, write
from tests.unit.trainer.tokens.test_limits import ENDLESS
from tests.unit.trainer.tokens.texts import DOCUMENTS

STRICT = "{% if messages|length > 3 %}{{ raise_exception('too long') }}{% endif %}" + PLAIN


def do(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """One line of a row; its exit code."""
    if line.startswith("$"):
        return subprocess.run(["bash", "-c", line[1:]], check=True).returncode
    if line.startswith("limit "):
        monkeypatch.setattr(folders, "DOCUMENT_BYTES_MAX", int(line.removeprefix("limit ")))
        return 0
    if line.startswith("chars "):
        monkeypatch.setattr(chat, "CONVERSATION_CHARS_MAX", int(line.removeprefix("chars ")))
        return 0
    if line.startswith("seconds "):
        monkeypatch.setattr(limits, "SECONDS_MAX", int(line.removeprefix("seconds ")))
        return 0
    return main(line.split())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the rows begin with; never changed."""
    folder = tmp_path_factory.mktemp("made")
    templates = {"chatty": PLAIN, "forgetful": FORGETFUL, "strict": STRICT, "endless": ENDLESS + PLAIN}
    for name, template in {"tokenizer": "", **templates}.items():
        save(folder / name, template)
    short = [one[:3] for one in CHATS]
    write(folder / "chat.jsonl", [{"messages": one, "said": "no list"} for one in [*short, *CHATS[:3]]])
    write(folder / "lines.jsonl", [{"text": text} for text in DOCUMENTS])
    (folder / "text.txt").write_text("".join(DOCUMENTS))
    columns = [DOCUMENTS, [None, *DOCUMENTS[1:]], DOCUMENTS, DOCUMENTS]
    table = pyarrow.table(columns, names=["words", "holes", "twice", "twice"])
    pyarrow.parquet.write_table(table, folder / "table.parquet")
    np.arange(320, dtype="<u2").tofile(folder / "ids.bin")
    write_megatron(folder / "wide", np.arange(320, dtype="<i4"))
    (folder / "mine").mkdir()
    (folder / "mine" / "keep.txt").write_text("my own words")
    (folder / "file").write_text("some words")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(f"{PACK} lines.jsonl store".split()) == 0
    return folder


def write_megatron(path: Path, ids: np.ndarray) -> None:
    """One document of one sequence, with its index."""
    ids.tofile(path.with_suffix(".bin"))
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, 1, 2)
    path.with_suffix(".idx").write_bytes(header + struct.pack("<iqqq", len(ids), 0, 0, 1))


@pytest.mark.parametrize("row", PACKING_ROWS, ids=[f"{row.file}-{row.words}" for row in PACKING_ROWS])
def test_what_a_refusal_of_data_says_works(
    row: Row, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for line in row.before.splitlines():
        assert do(line, monkeypatch) == 0
    assert do(row.wrong, monkeypatch) == ConfigError.exit_code
    said = capsys.readouterr().err.splitlines()[-1]
    assert row.words in said and "[Errno" not in said
    for line in row.right.splitlines():
        assert do(line, monkeypatch) == 0, capsys.readouterr().err


def test_what_the_system_refuses_is_one_sentence(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback that ended in `IsADirectoryError: [Errno 21]`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    lock = Path("out") / WORK / "lock"
    lock.mkdir(parents=True)
    assert do(WHOLE, monkeypatch) == ConfigError.exit_code
    says("errors.py", "check the path, its owner and its permissions", capsys.readouterr().err.splitlines()[-1])
    lock.rmdir()
    os.mknod(lock, stat.S_IFSOCK | 0o600)
    assert do(WHOLE, monkeypatch) == EXIT_FAILED
    says("errors.py", "check the disk it is on, and free space there", capsys.readouterr().err.splitlines()[-1])
    lock.unlink()
    assert do(WHOLE, monkeypatch) == 0
