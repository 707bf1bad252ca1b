"""Runs with stores in volumes: the founder says how many, a site finds out which it has; what cannot be is said."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from dilocoxd.cli.commands import created_from, new_manifest, own_text
from dilocoxd.cli.joining.join import _texts
from dilocoxd.cli.joining.text import given_text
from dilocoxd.config.manifest import Manifest, manifest_from_canonical, manifest_from_tables
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import volume_list, volumes_here
from dilocoxd.config.tokens.files import volumes_of
from dilocoxd.daemon.chain.reading_plan import ReadingPlan, lease_rules
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.reading.volumes import volume_of
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.trainer.settings import make_settings
from dilocoxd.trainer.tokens.store import TokenStore
from dilocoxd.wire.local.trainer import CloseBoundary, StartTraining
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

NOBODY = Access(("unused",), 1.0, print)
NUM_VOLUMES = 3


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, TokenStore]:
    """Two of six shards each."""
    write_tokenizer(tmp_path)
    size, found = len(DOCUMENTS) // 12, {}
    for number, name in enumerate(("books", "code")):
        starts = range(6 * number * size, 6 * (number + 1) * size, size)
        files = [write_lines(tmp_path / f"{name}{at}.jsonl", DOCUMENTS[at : at + size]) for at in starts]
        found[name] = packed(tmp_path, files, name=name)
    return found


def make_manifest(stores: Mapping[str, TokenStore], volumes: int = NUM_VOLUMES) -> Manifest:
    given = tuple(f"{name}={store.directory}" for name, store in stores.items())
    return own_text(new_manifest("tiny", {"data": {"volumes": volumes}}), {"data": given})[0]


def make_site(tmp_path: Path, stores: Mapping[str, TokenStore]) -> SiteConfig:
    corpora = {name: str(store.directory) for name, store in stores.items()}
    return SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))


def drop(store: TokenStore, volume: int) -> None:
    for shard in volumes_of(store.index, NUM_VOLUMES)[volume]:
        store.place(shard).path.unlink()


def test_a_site_finds_out_which_volumes_of_all_stores_it_has(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    manifest, site = make_manifest(stores), make_site(tmp_path, stores)
    assert volumes_here(manifest, site) == {0, 1, 2}
    assert _texts(manifest, site) == "books, code (all 3 volumes)"
    drop(stores["books"], 0)
    assert volumes_here(manifest, site) == {1, 2}
    drop(stores["code"], 2)
    given_text(manifest, site).bring(NOBODY)
    assert volumes_here(manifest, site) == {1}
    assert _texts(manifest, site) == "books, code (volume 1 of 3)"
    drop(stores["books"], 1)
    words = r"no volume is here of every token store of the run: books has volume 2 of 3; code has volumes 0-1 of 3"
    with pytest.raises(ConfigError, match=words):
        given_text(manifest, site).bring(NOBODY)
    drop(stores["books"], 2)
    with pytest.raises(ConfigError, match="is missing, and none of its 3 volumes is whole"):
        given_text(manifest, site).bring(NOBODY)


def test_numbers_of_volumes_are_put_together() -> None:
    assert volume_list({0, 1, 2, 5, 7, 8}, 9) == "volumes 0-2, 5, 7-8 of 9"


def test_bytes_of_other_runs_stay_and_leases_are_smaller(stores: dict[str, TokenStore]) -> None:
    plain, cut = make_manifest(stores, 1), make_manifest(stores)
    assert b"volumes" not in plain.canonical_bytes()
    assert b'"volumes":3' in cut.canonical_bytes()
    assert manifest_from_canonical(cut.canonical_bytes(), source="peer") == cut
    assert manifest_from_tables(tomllib.loads(cut.to_toml()), source="file") == cut
    before, after = lease_rules(plain), lease_rules(cut)
    assert before is not None
    assert after is not None
    assert (before.num_volumes, after.num_volumes) == (1, 3)
    assert after.absent_rounds == 3 * before.absent_rounds
    assert after.phase_samples_max == before.phase_samples_max


def test_trainers_are_told_the_volume_of_their_phase(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    manifest, me = make_manifest(stores), PeerId("me")
    plan = ReadingPlan(lease_rules(manifest), me)
    told = set()
    for number in range(2 * NUM_VOLUMES):
        phase, volume = PhaseId(number), volume_of(me, PhaseId(number), NUM_VOLUMES)
        start = plan.with_samples(StartTraining(phase, RoundIndex(0), 5, ""))
        close = plan.with_samples(CloseBoundary("replace", RoundIndex(0), phase, 5))
        assert isinstance(start, StartTraining)
        assert isinstance(close, CloseBoundary)
        assert (start.volume, close.volume) == (volume, volume)
        assert start.samples == close.samples != ()
        told.add(volume)
    assert told == {0, 1, 2}
    sources = make_settings(manifest, make_site(tmp_path, stores), data_stream="x").sources
    assert [source.num_volumes for source in sources] == [3, 3]


def test_a_founder_needs_one_volume_too(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    drop(stores["books"], 0)
    given = {"data": (f"books={stores['books'].directory}",), "tokenizer_from": str(tmp_path / "tokenizer")}

    def found(volumes: int, name: str) -> Path:
        changes = (f"data.volumes={volumes}",)
        return created_from("tiny", str(tmp_path / name), changes, given, lambda made, site, tokenizer: made).path

    assert found(NUM_VOLUMES, "run").exists()
    with pytest.raises(ConfigError, match="is missing; copy or pack it again"):
        found(1, "whole")


def test_what_cannot_be_cut_is_refused_before_it_names_a_run(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    given = {"data": (f"books={stores['books'].directory}",)}
    size = f"model.vocab_size={stores['books'].index.vocab_size}"

    def found(volumes: int, options: dict[str, object]) -> None:
        changes = (size, f"data.volumes={volumes}")
        created_from("tiny", str(tmp_path / "run"), changes, options, lambda made, site, tokenizer: made)

    with pytest.raises(ConfigError, match=r"volume \d+ of the token store 'books' would have 0 of its 6 shards"):
        found(20, given)
    with pytest.raises(
        ConfigError, match=r"data\.volumes = 2 cuts the token stores that sites share, and this run has"
    ):
        found(2, {})
    assert not (tmp_path / "run").exists()
    found(2, given)
    assert (tmp_path / "run").exists()
