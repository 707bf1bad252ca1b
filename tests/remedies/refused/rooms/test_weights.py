"""Files of weights that are not whole, or another model's: refused by name, and read once they are as it is said."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dilocoxd.models.frozen import FrozenModel
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.store.first_state import require_same_files
from dilocoxd.store.tensor_header import INDEX_NAME, SINGLE_NAME
from dilocoxd.wire.layout import ParamSpec
from tests.remedies.refused.rooms.told import told

FIRST, SECOND = ParamSpec("a", (4,)), ParamSpec("b", (2, 4))
TENSORS: Final = {"a": np.arange(4, dtype=np.float32), "b": np.ones((2, 4), np.float32)}


def download(folder: Path) -> Path:
    """What every remedy here comes to: the files as their maker gives them."""
    folder.mkdir(exist_ok=True)
    (folder / INDEX_NAME).unlink(missing_ok=True)
    save_file(TENSORS, folder / SINGLE_NAME)
    return folder


def read(folder: Path) -> None:
    source = Pretrained(folder)
    for spec in (FIRST, SECOND):
        assert np.concatenate(list(source.values(spec))).size == spec.numel


def write(folder: Path, **changes: Any) -> None:
    save_file({name: value for name, value in (TENSORS | changes).items() if value is not None}, folder / SINGLE_NAME)


def in_two(folder: Path) -> None:
    """Two files, and a tensor in both."""
    (folder / SINGLE_NAME).unlink()
    for name in ("one", "two"):
        save_file(TENSORS, folder / f"{name}.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))


def cut(folder: Path) -> None:
    path = folder / SINGLE_NAME
    path.write_bytes(path.read_bytes()[:-4])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return download(tmp_path / "model")


def test_a_tensor_in_two_files(model: Path) -> None:
    in_two(model)
    with told("models/pretrained.py", "as well; download the model again"):
        read(model)
    read(download(model))


def test_a_tensor_that_is_not_there(model: Path) -> None:
    write(model, b=None)
    with told("models/pretrained.py", "which config.json asks for; download the model again"):
        read(model)
    read(download(model))


def test_a_tensor_of_another_shape(model: Path) -> None:
    """The other config.json, that of these files, is the one that asks for their shapes."""
    write(model, b=np.ones((3, 4), np.float32))
    with told("models/pretrained.py", "use the config.json that belongs to these files"):
        read(model)
    assert list(Pretrained(model).values(ParamSpec("b", (3, 4))))


def test_numbers_of_a_kind_that_is_not_read(model: Path) -> None:
    write(model, a=np.arange(4, dtype=np.int64))
    with told("models/pretrained.py", "convert it to one of"):
        read(model)
    write(model, a=load_file(model / SINGLE_NAME)["a"].astype(np.float16))
    read(model)


def test_a_file_that_is_cut_off_while_it_is_read(model: Path) -> None:
    source = Pretrained(model)
    cut(model)
    with told("models/pretrained.py", "became shorter while it was read; download it again"):
        list(source.values(SECOND))
    read(download(model))


def test_weights_that_are_no_numbers(model: Path) -> None:
    write(model, a=np.array([1, np.nan, 2, 3], np.float32))
    with told("models/pretrained.py", "give other weights, these cannot be trained"):
        read(model)
    write(model)
    read(model)


def test_an_index_that_is_none(model: Path) -> None:
    (model / INDEX_NAME).write_text("{")
    with told("models/pretrained.py", "cannot be read (VALUE); download the model again"):
        read(model)
    read(download(model))


def test_a_file_that_is_missing(model: Path) -> None:
    (model / SINGLE_NAME).unlink()
    with told("models/pretrained.py", "download the model again, as safetensors"):
        read(model)
    read(download(model))


def test_a_file_that_is_no_safetensors(model: Path) -> None:
    (model / SINGLE_NAME).write_bytes(b"PK\x03\x04 a pickle")
    with told("models/pretrained.py", "cannot be read as safetensors (VALUE); download it again"):
        read(model)
    read(download(model))


def test_a_file_that_is_cut_off(model: Path) -> None:
    cut(model)
    with told("models/pretrained.py", "it is cut off, download it again"):
        read(model)
    read(download(model))


def frozen(model: Path, folder: str = "") -> FrozenModel:
    return FrozenModel(folder, Pretrained(model).hashes(lambda _: None), model.parent)


def test_an_adapter_whose_model_has_no_place(model: Path) -> None:
    with told("models/frozen.py", "set paths.base, or join with --init DIR"):
        frozen(model).open()
    frozen(model, str(model)).open()


def test_a_model_under_an_adapter_that_lacks_a_file(model: Path) -> None:
    known = frozen(model, str(model))
    save_file({"c": TENSORS["a"]}, model / "other.safetensors")
    (model / SINGLE_NAME).rename(model / "away")
    (model / INDEX_NAME).write_text(json.dumps({"weight_map": {"c": "other.safetensors"}}))
    with told("models/frozen.py", "is missing; the run's model has it (sha256 VALUE), download it again"):
        known.open()
    download(model)
    known.open()


def test_another_model_under_an_adapter(model: Path) -> None:
    known = frozen(model, str(model))
    write(model, a=TENSORS["a"] + 1)
    with told("models/frozen.py", "give the files that the run was started with"):
        known.open()
    download(model)
    known.open()


def test_other_files_than_those_a_run_started_from(model: Path) -> None:
    wanted = Pretrained(model).hashes(lambda _: None)
    write(model, a=TENSORS["a"] + 1)
    with told("store/first_state.py", "give the same files that the run started from"):
        require_same_files(wanted, Pretrained(model).hashes(lambda _: None), model, "")
    require_same_files(wanted, Pretrained(download(model)).hashes(lambda _: None), model, "")
