"""README.md of an exported model says of which data, tokenizer and weights it was made."""

from pathlib import Path

import pytest

from dilocoxd.cli.commands import new_manifest
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.sources import SourceSection
from dilocoxd.trained.anchor import AnchorFile
from dilocoxd.trained.card import Facts, card
from dilocoxd.trained.chain import BroughtIn

BOOKS = SourceSection(name="books", sha256="a" * 64, num_tokens=9000, weight=9000.0)
CODE = SourceSection(name="code", sha256="b" * 64, num_tokens=500, weight=1000.0)


def changed(manifest: Manifest, section: str, **fields: object) -> Manifest:
    return manifest.model_copy(update={section: getattr(manifest, section).model_copy(update=fields)})


@pytest.fixture
def manifest() -> Manifest:
    return new_manifest("tiny", {})


def written(manifest: Manifest) -> str:
    anchor = AnchorFile(Path("anchor.safetensors"), 0, (), 7, "c" * 64, (), "d" * 64)
    shares = [BroughtIn("QmPeer", 7, 640)]
    return card(manifest, Facts(anchor, (), "e" * 64, "", shares, "float32", "", {}))


def test_run_on_one_text_names_it(manifest: Manifest) -> None:
    text = written(changed(manifest, "data", corpus="manual", sha256="f" * 64))
    assert "on 640 tokens of `manual`." in text
    assert f"| data | `manual`, sha256 `{'f' * 64}` |" in text


def test_run_on_token_stores_names_each_and_no_other_text(manifest: Manifest) -> None:
    text = written(changed(manifest, "data", sources=(BOOKS, CODE)))
    assert "on 640 tokens of `books`, `code`." in text
    assert f"| data | token store `code`, 500 tokens, weight 1000, sha256 `{'b' * 64}` |" in text
    assert manifest.data.corpus not in text


def test_names_of_private_stores_stay_with_the_sites(manifest: Manifest) -> None:
    private = (CODE.model_copy(update={"private": True}), CODE.model_copy(update={"private": True, "name": "clinic"}))
    text = written(changed(manifest, "data", sources=(BOOKS, *private)))
    assert "on 640 tokens of `books`, 2 private token stores." in text
    assert "| data | 2 private token stores |" in text
    assert "clinic" not in text
    assert CODE.sha256 not in text


def test_files_that_the_run_was_made_from_have_their_hashes(manifest: Manifest) -> None:
    made = changed(manifest, "init", files={"model.safetensors": "1" * 64})
    text = written(changed(made, "tokenizer", kind="files", files={"tokenizer.json": "2" * 64}))
    assert f"| starts from | `model.safetensors` sha256 `{'1' * 64}` |" in text
    assert f"| tokenizer | `tokenizer.json` sha256 `{'2' * 64}` |" in text
    parent = changed(made, "init", parent="tiny-0123456789abcdef@9")
    assert "| goes on from | tiny-0123456789abcdef@9 |" in written(parent)


def test_last_state_of_a_complete_run_waits_for_no_entry(manifest: Manifest) -> None:
    assert "| state digest signed in | no entry yet |" in written(manifest)
    assert "no entry yet" in written(changed(manifest, "run", stop_after_tokens=641))
    complete = written(changed(manifest, "run", stop_after_tokens=640))
    assert "| state digest signed in | no entry, for the run ends with it; the log makes it again (below) |" in complete
