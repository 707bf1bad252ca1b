"""A folder in which something large is made: one process at a time, and what a killed one left is cleared away."""

from pathlib import Path

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import hidden_folder


def test_what_a_killed_process_left_is_gone_and_nothing_stays(tmp_path: Path) -> None:
    left = tmp_path / ".model.first-state"
    (left / "below").mkdir(parents=True)
    (left / "anchor.safetensors").write_bytes(b"half")
    (left / "link").symlink_to(tmp_path)
    with hidden_folder(tmp_path / "model", ".first-state") as folder:
        assert folder == left
        assert list(folder.iterdir()) == []
        (folder / "mine").write_text("mine")
    assert list(tmp_path.iterdir()) == []


def test_another_process_waits_its_turn(tmp_path: Path) -> None:
    with hidden_folder(tmp_path / "model") as folder:
        (folder / "mine").write_text("mine")
        with pytest.raises(ConfigError, match="another process makes it just now"), hidden_folder(tmp_path / "model"):
            pass
        assert (folder / "mine").read_text() == "mine"


def test_what_was_renamed_stays_and_so_does_the_next_one(tmp_path: Path) -> None:
    with hidden_folder(tmp_path / "model") as folder:
        (folder / "mine").write_text("mine")
        folder.rename(tmp_path / "model")
        with hidden_folder(tmp_path / "model") as other:
            (other / "theirs").write_text("theirs")
            other.rename(tmp_path / "later")
            other.mkdir()
    assert (tmp_path / "model" / "mine").read_text() == "mine"
    assert (tmp_path / "later" / "theirs").read_text() == "theirs"
    assert folder.is_dir()


def test_a_link_in_its_place_costs_nobody_a_file(tmp_path: Path) -> None:
    """In a folder that others write to, one of them may have put it there."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters").write_text("mine")
    (tmp_path / ".model.tmp").symlink_to(tmp_path / "home")
    with pytest.raises(ConfigError, match="is a link"), hidden_folder(tmp_path / "model"):
        pass
    assert (tmp_path / "home" / "letters").read_text() == "mine"
