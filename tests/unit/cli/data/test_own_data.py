"""`--data`: what a run calls its text, and what it says of token stores."""

import shutil
from pathlib import Path

import pytest

from dilocoxd.cli.commands import new_manifest, own_text
from dilocoxd.cli.corpus import name_of, named_paths
from dilocoxd.cli.joining.text import given_text
from dilocoxd.config.manifest import Manifest, manifest_from_canonical
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.trainer.tokens.store import INDEX, ShardInfo, StoreIndex
from tests.harness.published.directory import LINES
from tests.harness.published.prepared_here import prepared_here


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "My Notes.txt"
    path.write_text("text\n")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "books"
    path.mkdir()
    shards = (ShardInfo("train-00000", 900, 3, "0" * 64, "0" * 64), ShardInfo("held-00000", 90, 1, "0" * 64, "0" * 64))
    (path / INDEX).write_bytes(StoreIndex("uint16", 300, None, "", shards).canonical_bytes())
    for shard in shards:
        (path / f"{shard.name}.bin").write_bytes(bytes(2 * shard.num_tokens))
        (path / f"{shard.name}.ends").write_bytes(bytes(8 * shard.num_documents))
    return path


def test_path_becomes_a_name_and_all_of_the_text_is_used(notes: Path) -> None:
    tiny = new_manifest("tiny", {})
    given, where = own_text(tiny, {"data": (str(notes),)})
    assert (given.data.corpus, where, given.data.chars_max) == ("my-notes", {"my-notes": str(notes)}, 0)
    asked, _ = own_text(new_manifest("tiny", {"data": {"chars_max": 500}}), {"data": (f"n={notes}",)})
    assert (asked.data.corpus, asked.data.chars_max) == ("n", 500)
    by_field, where = own_text(new_manifest("tiny", {"data": {"corpus": f"text:{notes}"}}), {})
    assert (by_field.data.corpus, where) == ("my-notes", {"my-notes": str(notes)})
    assert own_text(tiny, {}) == (tiny, {})


@pytest.mark.parametrize(
    ("path", "name"), [("/a/Some Text!.txt", "some-text"), ("/a/...", "text"), ("/x/english", "text")]
)
def test_names_are_plain(path: str, name: str) -> None:
    assert name_of(path) == name


def test_wrong_choices_are_told_in_one_sentence(notes: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*give the path"):
        named_paths([str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="choose another name"):
        named_paths([f"english={notes}"])
    with pytest.raises(ConfigError, match="put them into one folder"):
        own_text(new_manifest("tiny", {}), {"data": (f"a={notes}", f"b={notes}")})


def test_store_becomes_a_source_by_its_hash(store: Path) -> None:
    tiny = new_manifest("tiny", {})
    manifest, where = own_text(tiny, {"data": (f"books={store}",)})
    (source,) = manifest.data.sources
    assert (source.name, source.num_tokens, source.weight, len(source.sha256)) == ("books", 900, 900.0, 64)
    assert where == {"books": str(store)}
    assert manifest_from_canonical(manifest.canonical_bytes(), source="test") == manifest
    assert manifest.run_id != tiny.run_id
    small = tiny.model_copy(update={"model": tiny.model.model_copy(update={"vocab_size": 290})})
    with pytest.raises(ConfigError, match=r"--set model\.vocab_size=300"):
        own_text(small, {"data": (f"books={store}",)})


def test_weights_of_a_run_toml_are_kept(store: Path, tmp_path: Path) -> None:
    """As docs/data.md says: draft, edit `[[data.sources]]`, start from the copy with the same stores."""
    other = store.rename(tmp_path / "other")
    shutil.copytree(other, store)
    (store / INDEX).write_bytes((other / INDEX).read_bytes().replace(b"900", b"800"))
    given = {"data": (f"books={store}", f"more={other}")}
    draft, _ = own_text(new_manifest("tiny", {}), given)
    assert [one.weight for one in draft.data.sources] == [800.0, 900.0]
    copy = tmp_path / "own.toml"
    copy.write_text(draft.to_toml().replace("weight = 800.0", "weight = 100.0"))
    made, _ = own_text(new_manifest(str(copy), {}), given)
    assert [(one.name, one.weight) for one in made.data.sources] == [("books", 100.0), ("more", 900.0)]
    # What was packed anew since weighs as much as it holds now.
    (store / INDEX).write_bytes((other / INDEX).read_bytes().replace(b"900", b"700"))
    again, _ = own_text(new_manifest(str(copy), {}), given)
    assert [one.weight for one in again.data.sources] == [700.0, 900.0]


def refusal(manifest: Manifest, **corpora: str) -> str:
    """Why a site with these paths cannot join."""
    with pytest.raises(ConfigError) as caught:
        given_text(manifest, SiteConfig(paths=PathsSection(corpora=corpora))).bring(Access(("unused",), 1.0, print))
    return str(caught.value)


def test_joiner_needs_the_runs_stores(store: Path, notes: Path, tmp_path: Path) -> None:
    manifest, _ = own_text(new_manifest("tiny", {}), {"data": (f"books={store}",)})
    given_text(manifest, SiteConfig(paths=PathsSection(corpora={"books": str(store)}))).bring(
        Access(("unused",), 1.0, print)
    )
    assert "copy it from another site, and say where it is with --data books=PATH" in refusal(manifest)
    assert "is no token store" in refusal(manifest, books=str(notes))
    assert "'mine' is no text of this run; it has: books; use that name" in refusal(manifest, mine=str(store))
    other = tmp_path / "other"
    other.mkdir()
    (other / INDEX).write_bytes((store / INDEX).read_bytes().replace(b"900", b"901"))
    assert "its hash is" in refusal(manifest, books=str(other))
    (store / "train-00000.bin").write_bytes(bytes(1000))
    assert "train-00000.bin has 1000 of 1800 bytes; copy or pack it again" in refusal(manifest, books=str(store))
    (store / "held-00000.ends").unlink()
    assert "held-00000.ends is missing; copy or pack it again" in refusal(manifest, books=str(store))


def test_path_in_somebody_elses_manifest_is_never_read(notes: Path) -> None:
    manifest = new_manifest("tiny", {"data": {"corpus": str(notes)}})
    assert "a path from somebody else is never read" in refusal(manifest)
    assert "'notes' is no text of this run; it has: english; use" in refusal(new_manifest("tiny", {}), notes=str(notes))


def test_text_that_no_hash_pins_is_looked_at_once(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was prepared to look at it, and a second time, from the cache, to have it."""
    notes.write_text("".join(LINES))
    manifest, corpora = own_text(new_manifest("tiny", {"model": {"vocab_size": 300}}), {"data": (f"mine={notes}",)})
    assert not manifest.data.sha256
    looks = "looking for the training text"
    with prepared_here():
        text = given_text(manifest, SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora)))
        assert capsys.readouterr().err.count(looks) == 1
        text.bring(Access(("unused",), 1.0, print))
        assert looks not in capsys.readouterr().err
