"""Private token stores: a site needs none but its own, asks nobody for others, and shows what it has."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from dilocoxd.cli.commands import created_from, new_manifest, own_text
from dilocoxd.cli.joining.join import _texts
from dilocoxd.cli.joining.text import given_text
from dilocoxd.config.manifest import Manifest, load_manifest, manifest_from_canonical, manifest_from_tables
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.daemon.chain.reading_plan import lease_rules
from dilocoxd.daemon.settings import membership_of
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.trainer.data.sources import open_source, sources_of
from dilocoxd.trainer.settings import make_settings
from dilocoxd.trainer.tokens.store import TokenStore
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

NOBODY = Access(("unused",), 1.0, print)


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, TokenStore]:
    write_tokenizer(tmp_path)
    parts = {"north": DOCUMENTS[:200], "south": DOCUMENTS[200:]}
    return {n: packed(tmp_path, [write_lines(tmp_path / f"{n}.jsonl", part)], name=n) for n, part in parts.items()}


def make_manifest(stores: dict[str, TokenStore], is_private: Callable[[str], bool] = lambda name: True) -> Manifest:
    given = tuple(f"{name}={store.directory}" for name, store in stores.items())
    tables = own_text(new_manifest("tiny", {}), {"data": given})[0].model_dump(mode="json")
    for source in tables["data"]["sources"]:
        if is_private(source["name"]):
            source["private"] = True
    return manifest_from_tables(tables, source="test")


def make_site(tmp_path: Path, *found: TokenStore) -> SiteConfig:
    corpora = {store.directory.name: str(store.directory) for store in found}
    return SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache"), corpora=corpora))


def test_a_site_needs_one_of_the_private_stores_and_asks_nobody(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    manifest = make_manifest(stores)
    for store in stores.values():
        site = make_site(tmp_path, store)
        given_text(manifest, site).bring(NOBODY)
        assert [source.name for source in sources_of(manifest, site)] == [store.directory.name]
        assert make_settings(manifest, site, data_stream="x").leased_share == (0, 1)
    with pytest.raises(ConfigError, match=r"private \(north, south\), and nothing says where this site has one"):
        given_text(manifest, make_site(tmp_path)).bring(NOBODY)


def test_a_private_store_must_be_the_one_of_the_manifest(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    corpora = {"north": str(stores["south"].directory)}
    manifest, site = make_manifest(stores), SiteConfig(paths=PathsSection(corpora=corpora))
    remedy = "; give the store that run.toml names, or correct its sha256 before the start$"
    with pytest.raises(ConfigError, match="its hash is .*" + remedy):
        given_text(manifest, site).bring(NOBODY)
    with pytest.raises(ConfigError, match="its hash is .*" + remedy):
        open_source(sources_of(manifest, site)[0], manifest.model.vocab_size)
    with pytest.raises(ConfigError, match="this is no token store" + remedy):
        given_text(manifest, SiteConfig(paths=PathsSection(corpora={"north": str(tmp_path)}))).bring(NOBODY)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"sha256": "ab" * 32}, "its hash is"), ({"num_tokens": 7}, "run.toml says num_tokens = 7; correct")],
)
def test_a_mistake_in_run_toml_is_told_before_it_names_the_run(
    tmp_path: Path, stores: dict[str, TokenStore], changes: dict[str, object], words: str
) -> None:
    tables = make_manifest(stores).model_dump(mode="json")
    tables["data"]["sources"][0].update(changes)
    path = tmp_path / "run.toml"
    path.write_text(manifest_from_tables(tables, source="test").to_toml())
    given = {"data": (f"north={stores['north'].directory}",)}
    with pytest.raises(ConfigError, match=words):
        created_from(str(path), str(tmp_path / "run"), (), given, lambda made, site, tokenizer: made)
    assert not (tmp_path / "run").exists()


def test_a_private_store_without_a_window_is_refused_at_join(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    tables = make_manifest(stores).model_dump(mode="json")
    tables["model"]["seq_len"] = 1 << 20
    tables["data"]["evaluate_every_rounds"] = 0
    with pytest.raises(ConfigError, match=r"north=.*: no window of 1048577 tokens to train on"):
        given_text(manifest_from_tables(tables, source="test"), make_site(tmp_path, stores["north"])).bring(NOBODY)


def test_joining_tells_what_is_private_and_what_is_here(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    manifest = make_manifest(stores)
    here = make_site(tmp_path, stores["south"])
    assert _texts(manifest, here) == "private, each site reads its own (north, south); this one has south"
    assert _texts(manifest, make_site(tmp_path)).endswith("this one has none of them")
    assert _texts(make_manifest(stores, lambda name: False), here) == "north, south"


def test_nothing_is_leased_and_the_bytes_of_other_runs_stay(stores: dict[str, TokenStore]) -> None:
    private, shared = make_manifest(stores), make_manifest(stores, lambda name: False)
    assert lease_rules(private) is None
    assert lease_rules(shared) is not None
    assert b"private" not in shared.canonical_bytes()
    assert manifest_from_canonical(private.canonical_bytes(), source="peer") == private


def mixed(stores: dict[str, TokenStore], share: object) -> Manifest:
    tables = make_manifest(stores).model_dump(mode="json")
    del tables["data"]["sources"][1]["private"]
    tables["data"]["shared_share"] = share
    return manifest_from_tables(tables, source="test")


def test_shared_and_private_stores_in_one_run_need_a_share(stores: dict[str, TokenStore]) -> None:
    with pytest.raises(ConfigError, match=r"north private and others not, so data\.shared_share must say"):
        make_manifest(stores, lambda name: name == "north")
    for share in ([1], [2, 2], [3, 2], [1, 2, 3], [0, 2]):
        with pytest.raises(ConfigError, match="shared_share"):
            mixed(stores, share)
    with pytest.raises(ConfigError, match="less than one, so shared stores are never read"):
        mixed(stores, [1, 10_000])
    for is_private, word in ((True, "all"), (False, "none")):
        tables = make_manifest(stores, lambda name, is_private=is_private: is_private).model_dump(mode="json")
        tables["data"]["shared_share"] = [1, 2]
        with pytest.raises(ConfigError, match=f"but {word} of data.sources are private; remove it"):
            manifest_from_tables(tables, source="test")


def test_beside_shared_stores_a_site_needs_them_and_a_private_one(
    tmp_path: Path, stores: dict[str, TokenStore]
) -> None:
    manifest = mixed(stores, [1, 3])
    assert manifest_from_canonical(manifest.canonical_bytes(), source="peer") == manifest
    assert manifest_from_tables(tomllib.loads(manifest.to_toml()), source="file") == manifest
    site = make_site(tmp_path, *stores.values())
    given_text(manifest, site).bring(NOBODY)
    assert [source.is_private for source in sources_of(manifest, site)] == [True, False]
    assert make_settings(manifest, site, data_stream="x").leased_share == (1, 3)
    with pytest.raises(ConfigError, match=r"some token stores of this run are private \(north\)"):
        given_text(manifest, make_site(tmp_path, stores["south"])).bring(NOBODY)
    with pytest.raises(ConfigError, match="the run trains on the token store 'south'"):
        given_text(manifest, make_site(tmp_path, stores["north"])).bring(NOBODY)
    assert _texts(manifest, site) == "south; and private, each site reads its own (north); this one has north"


def test_only_the_shared_part_is_leased(stores: dict[str, TokenStore]) -> None:
    manifest, shared = mixed(stores, [1, 3]), make_manifest(stores, lambda name: False)
    rules, whole = lease_rules(manifest), lease_rules(shared)
    assert rules is not None
    assert whole is not None
    assert (rules.share, whole.share) == ((1, 3), (1, 1))
    assert rules.phase_samples_max == whole.phase_samples_max // 3


def test_founder_gives_one_of_the_stores_that_run_toml_names(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(make_manifest(stores).to_toml())
    given = {"data": (f"north={stores['north'].directory}",)}
    run_dir = created_from(str(path), str(tmp_path / "run"), (), given, lambda made, site, tokenizer: made)
    assert [source.private for source in load_manifest(run_dir.run_toml).data.sources] == [True, True]
    with pytest.raises(ConfigError, match="names no store 'other'"):
        own_text(make_manifest(stores), {"data": (f"other={stores['north'].directory}",)})


def test_run_toml_of_a_draft_founds_a_run_of_all_stores(tmp_path: Path, stores: dict[str, TokenStore]) -> None:
    """As docs/data.md says it: a draft with the own store, the others' tables, no authorities."""
    given = {"data": (f"north={stores['north'].directory}",), "host": "127.0.0.1", "port": 0}
    size = f"model.vocab_size={stores['north'].index.vocab_size}"
    draft = created_from("tiny", str(tmp_path / "draft"), (size,), given, lambda made, site, tokenizer: made)
    south = stores["south"].index
    table = (
        f'[[data.sources]]\nname = "south"\nsha256 = "{south.sha256()}"\nprivate = true\n'
        f"num_tokens = {stores['south'].train.num_tokens}\nweight = 1000.0\n\n"
    )
    text = draft.run_toml.read_text()
    own = next(line for line in text.splitlines() if line.startswith("weight = "))
    text = text.replace(own, f"{own}\nprivate = true\n\n{table}")
    keys = load_manifest(draft.run_toml).admission.authorities
    copy = tmp_path / "run.toml"
    copy.write_text(text.replace(f'authorities = [\n    "{keys[0]}",\n]', "authorities = []"))
    founded = created_from(str(copy), str(tmp_path / "run"), (), given, lambda made, site, tokenizer: made)
    manifest = load_manifest(founded.run_toml)
    assert [(one.name, one.private) for one in manifest.data.sources] == [("north", True), ("south", True)]
    assert len(manifest.admission.authorities) == 1
    assert manifest.admission.authorities != keys
    # No key of the draft's is needed: who founds it is a member.
    assert membership_of(founded, manifest, load(founded.identity(SiteConfig())).peer_id)
