"""What lies below a folder: every file once, through links as well."""

from pathlib import Path

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.folders import files_below


def tree(folder: Path) -> Path:
    """Two folders with a file each, and a third one outside."""
    for name in ("in/b", "in/c", "outside/deep"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.txt").write_text(name)
    return folder / "in"


def test_linked_folders_are_read(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "more").symlink_to(tmp_path / "outside")
    assert files_below(root) == [root / "b/a.txt", root / "c/a.txt", root / "more/deep/a.txt"]


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "b" / "up").symlink_to(root)
    (root / "a").symlink_to(root / "c")
    (root / "z").symlink_to(root / "b")
    (tmp_path / "outside" / "deep" / "home").symlink_to(root)
    (root / "more").symlink_to(tmp_path / "outside")
    assert files_below(root) == [root / "b/a.txt", root / "c/a.txt", root / "more/deep/a.txt"]


def test_link_to_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "gone").symlink_to(tmp_path / "nowhere")
    assert root / "gone" in files_below(root)
    with pytest.raises(ConfigError, match="cannot be listed"):
        files_below(tmp_path / "nowhere")
