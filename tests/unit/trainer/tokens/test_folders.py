"""What lies below a folder: every file once, through links as well."""

import os
from pathlib import Path

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data.corpora import read_corpus
from dilocoxd.trainer.tokens.adopt import AdoptOptions, adopt
from dilocoxd.trainer.tokens.folders import files_below
from dilocoxd.trainer.tokens.inputs import list_inputs


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


@pytest.mark.parametrize("is_linked", [True, False])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_may_never_end_is_refused_wherever_a_link_leads(tmp_path: Path, kind: str, *, is_linked: bool) -> None:
    """/dev/zero has no size and no end, and is valid UTF-8; a pipe without a writer is waited for."""
    root, there = tree(tmp_path), Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(there)
    link = root / "b" / "endless.txt" if is_linked else tmp_path / "given.txt"
    link.symlink_to(there)
    given = root if is_linked else link
    with pytest.raises(ConfigError, match="a device or a pipe"):
        list_inputs([given])
    with pytest.raises(ConfigError, match="a device or a pipe"):
        read_corpus(f"text:{given}", lambda _: None)
    for name in ("ids.bin", "ids.idx"):
        (tmp_path / name).symlink_to(there)
        with pytest.raises(ConfigError, match="a device or a pipe"):
            adopt([tmp_path / "ids.bin"], tmp_path / "out", AdoptOptions(vocab_size=9), lambda done, total: None)
        (tmp_path / name).unlink()
        (tmp_path / name).touch()
