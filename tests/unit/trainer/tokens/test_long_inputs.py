"""Inputs that are small on disk and huge when they are read: refused, or read a little at a time."""

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens import folders, inputs
from dilocoxd.trainer.tokens.inputs import cut, documents, list_inputs


def read(path: Path) -> list[str]:
    """All documents of a file."""
    return [text for piece in cut(list_inputs([path])[0]) for text in documents(piece, "text")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt.gz", "a.parquet"])
def test_document_that_is_too_long_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "DOCUMENT_BYTES_MAX", 5000)
    monkeypatch.setattr(inputs, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(inputs, "_SEARCH_BYTES", 10)
    text = "long" * 10_000
    path = tmp_path / name
    if name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": ["short", text]}), path)
    else:
        (gzip.open if name.endswith(".gz") else open)(path, "wb").write(f'{{"text": "{text}"}}\n'.encode())
    with pytest.raises(ConfigError, match=r"a\..* has more than 5,000 bytes; split it"):
        read(path)


BOMB_ROWS = 4096
ROW_BYTES = 1 << 20
MEMORY_MIB_MAX = 1024
"""All rows of a batch would be four times as much."""
PEAK = f"""
import re, sys
from pathlib import Path
from dilocoxd.trainer.tokens.inputs import cut, documents, list_inputs
(piece,) = cut(list_inputs([Path(sys.argv[1])])[0])
count = sum(len(text) == {ROW_BYTES} for text in documents(piece, "text"))
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(count, int(peak[1]) >> 10)
"""
"""Not ru_maxrss, which begins with the memory of who started the process."""


def test_table_that_repeats_a_long_text_takes_little_memory(tmp_path: Path) -> None:
    words = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * BOMB_ROWS, pyarrow.int32()), ["x" * ROW_BYTES])
    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": words}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < ROW_BYTES
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    count, peak_mib = map(int, done.stdout.split())
    assert count == BOMB_ROWS
    assert peak_mib < MEMORY_MIB_MAX
