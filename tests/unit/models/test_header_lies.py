"""Files of weights whose headers lie: refused in one sentence; other weights are never read in their place."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.store.tensor_header import INDEX_NAME, SINGLE_NAME
from dilocoxd.wire.layout import ParamSpec

VALUES = np.arange(12, dtype="<f4")
FIRST = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
SECOND = {"dtype": "F32", "shape": [2, 4], "data_offsets": [16, 48]}
HONEST = {"a": FIRST, "b": SECOND}


def written(folder: Path, table: dict[str, Any], data: bytes = VALUES.tobytes()) -> Path:
    header = json.dumps(table).encode()
    (folder / SINGLE_NAME).write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder


def moved(unused: dict[str, Any], num_bytes: int) -> dict[str, Any]:
    """The honest tensors behind one that is not used."""
    behind = {
        name: item | {"data_offsets": [at + num_bytes for at in item["data_offsets"]]}  # type: ignore[attr-defined]
        for name, item in HONEST.items()
    }
    return {"unused": unused} | behind


def unused(dtype: str, shape: Any, *offsets: Any) -> dict[str, Any]:
    return {"unused": {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}}


def test_tensors_are_read_from_where_they_lie(tmp_path: Path) -> None:
    folder = written(tmp_path, HONEST)
    assert np.array_equal(np.concatenate(list(Pretrained(folder).values(ParamSpec("b", (2, 4))))), VALUES[4:])


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [4, 2]), ("BOOL", [4]), ("F8_E4M3", [4]), ("U64", [0, 9])])
def test_what_lies_in_front_moves_nothing(tmp_path: Path, dtype: str, shape: list[int]) -> None:
    num_bytes = 4 * (shape[0] > 0)
    table = moved({"dtype": dtype, "shape": shape, "data_offsets": [0, num_bytes]}, num_bytes)
    folder = written(tmp_path, table, bytes(num_bytes) + VALUES.tobytes())
    assert np.array_equal(np.concatenate(list(Pretrained(folder).values(ParamSpec("b", (2, 4))))), VALUES[4:])


@pytest.mark.parametrize(
    "table",
    [
        {"a": FIRST, "b": SECOND | {"data_offsets": [0, 32]}},
        {"a": FIRST, "b": SECOND | {"data_offsets": [0, 48]}},
        {"a": FIRST, "b": SECOND | {"data_offsets": [12, 44]}},
        {"a": FIRST, "b": SECOND | {"data_offsets": [20, 52]}},
        {"a": FIRST, "b": SECOND | {"data_offsets": [16]}},
        {"a": FIRST, "b": SECOND | {"data_offsets": [16.0, 48.0]}},
        {"a": FIRST, "b": SECOND | {"shape": [2, 5]}},
        {"a": FIRST, "b": SECOND | {"dtype": "F16"}},
        {"a": FIRST, "b": SECOND | {"shape": [-2, -4]}},
        HONEST | unused("U64", [-8], 0, 0),
        HONEST | unused("U64", [2**70], 0, 0),
        HONEST | unused("U64", [2**70], 48, 48 + 2**73),
        HONEST | unused("U64", [1.5], 0, 0),
        HONEST | unused("F32", ["a"], 0, 0),
        HONEST | unused("F32", [1] * 65, 48, 52),
        HONEST | unused("F32", 5, 0, 0),
        HONEST | unused("F32", [True], 48, 52),
        HONEST | unused("F4", [3], 48, 49),
        HONEST | unused("F32", [1], -4, 0),
    ],
)
def test_a_header_that_lies_is_one_sentence(tmp_path: Path, table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"damaged safetensors header|cut off"):
        Pretrained(written(tmp_path, table))


@pytest.mark.parametrize("names", [{"a": 5}, {"a": 5, "b": SINGLE_NAME}, {"a": [1]}, {"a": None}, [SINGLE_NAME], "x"])
def test_an_index_that_names_no_files_is_one_sentence(tmp_path: Path, names: object) -> None:
    written(tmp_path, HONEST)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ConfigError, match="cannot be read"):
        Pretrained(tmp_path)


def test_an_index_with_a_name_that_no_file_can_have_is_one_sentence(tmp_path: Path) -> None:
    written(tmp_path, HONEST)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(ConfigError, match=r"x{200} is missing"):
        Pretrained(tmp_path)


def test_an_index_that_is_larger_than_any_is_not_read(tmp_path: Path) -> None:
    written(tmp_path, HONEST)
    (tmp_path / INDEX_NAME).touch()
    os.truncate(tmp_path / INDEX_NAME, 1 << 40)
    with pytest.raises(ConfigError, match="it has more than 64 MiB"):
        Pretrained(tmp_path)
