"""Two sites with a private store each read a shared one beside it while one is killed: counted document by document.

Real daemons, outer workers, network and logs; trainers have no model and note what they are told to read. What they
would have read of it is told by the trainers' own order.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.daemon.chain.reading_plan import lease_rules
from dilocoxd.ids import PeerId
from dilocoxd.machines.reading.leases import leases_of
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.data.mixed import StoreReading, order_of
from dilocoxd.trainer.data.sources import sources_of
from dilocoxd.trainer.tokens.store import INDEX, ShardInfo, StoreIndex, open_store
from dilocoxd.wire.entry import Contribution
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import log_of
from tests.harness.synthetic.trainer import TOKENS_PER_STEP
from tests.integration.models.test_leased_reading import OPTIONS, PATIENCE_S, held, peer_id, start, told

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
NUM_DOCUMENTS = 1 << 16
SHARED, NORTH, SOUTH = 1, 2, 3
"""What the tokens of a document say of its store."""


def write_store(folder: Path, kind: int) -> Path:
    """Of one shard."""
    folder.mkdir()
    shard = write_documents(folder, "train-00000", kind)
    (folder / INDEX).write_bytes(StoreIndex("uint16", 300, None, "", (shard,)).canonical_bytes())
    return folder


def write_documents(folder: Path, name: str, kind: int) -> ShardInfo:
    """Documents of one window, which begin with their number in two digits, and tell what they are of."""
    numbers = np.arange(NUM_DOCUMENTS)
    tokens = np.full((NUM_DOCUMENTS, TOKENS_PER_STEP), kind, dtype="<u2")
    tokens[:, 0], tokens[:, 1] = numbers // 256, numbers % 256
    tokens.tofile(folder / f"{name}.bin")
    ((numbers + 1) * TOKENS_PER_STEP).astype("<i8").tofile(folder / f"{name}.ends")
    return ShardInfo(name, tokens.size, NUM_DOCUMENTS, "0" * 64, "0" * 64)


def mixed_run(folder: Path, stores: dict[str, Path]) -> Path:
    """A run.toml with all stores: `shared` for all sites, the others private."""
    first = found_run(folder, "template", *OPTIONS, "--data", f"shared={stores['shared']}")
    tables = open_run_dir(first.run_dir).load()[0].model_dump(mode="json")
    tables["admission"]["authorities"] = ()
    for name in ("north", "south"):
        index = open_store(stores[name]).index
        tables["data"]["sources"].append(
            tables["data"]["sources"][0] | {"name": name, "sha256": index.sha256(), "private": True}
        )
    tables["data"]["shared_share"] = [2, 5]
    path = folder / "run.toml"
    path.write_text(manifest_from_tables(tables, source="test").to_toml())
    return path


def documents(manifest: Manifest, site: SiteProcess, contributions: list[Contribution]) -> list[tuple[int, int]]:
    """(store, document) of all samples behind these contributions of one site."""
    reading = StoreReading(manifest.model.seq_len, manifest.model.vocab_size, manifest.seeds.data)
    order = order_of(
        sources_of(manifest, open_run_dir(site.run_dir).load()[1]), reading, site.name, manifest.data.leased_share
    )
    plans, found = told(site), []
    for one in contributions:
        order.begin([bound for sample in plans[one.phase] for bound in (sample, sample + 1)])
        ids_BT, _ = order.batch(0, one.tokens // TOKENS_PER_STEP)
        found += [(int(ids[-1]), int(ids[0]) * 256 + int(ids[1])) for ids in ids_BT]
    return found


def num_contributions(site: SiteProcess) -> int:
    return int(site.status().get("totals", {}).get("contributions", 0))


def test_shared_documents_are_counted_once_and_private_ones_stay(tmp_path: Path) -> None:
    kinds = {"shared": SHARED, "north": NORTH, "south": SOUTH}
    stores = {name: write_store(tmp_path / f"{name}.store", kind) for name, kind in kinds.items()}
    common = ("--data", f"shared={stores['shared']}", "--data")
    target = str(mixed_run(tmp_path, stores))
    north = found_run(tmp_path, "north", *common, f"north={stores['north']}", target=target)
    with sites(north):
        start(north, 0.05)
        south = join_run(tmp_path, "south", north, *common, f"south={stores['south']}")
        with sites(south):
            start(south, 0.06)
            ids = {peer_id(site): site for site in (north, south)}
            wait_until(lambda: num_contributions(south) >= 3, "contributions of south", PATIENCE_S, south.describe)
            south.kill_tree()
            north.wait_height(north.says("height") + 3, PATIENCE_S)
            start(south, 0.06)
            south.wait_height(north.says("height") + 4, PATIENCE_S)
            assert south.stop() == 0
            assert north.stop() == 0
    manifest, _ = open_run_dir(north.run_dir).load()
    entries = [signed.entry for signed in log_of(north).entries()]
    by_site: dict[PeerId, list[Contribution]] = {peer: [] for peer in ids}
    for entry in entries:
        for one in entry.contributions:
            by_site[one.peer].append(one)
    assert all(by_site.values()), "a site contributed nothing"
    read = [(peer, *one) for peer, list_ in by_site.items() for one in documents(manifest, ids[peer], list_)]
    own = {peer: kinds[site.name] for peer, site in ids.items()}
    assert all(kind in (SHARED, own[peer]) for peer, kind, _ in read), "a private store was read elsewhere"
    assert {kind for _, kind, _ in read} == {SHARED, NORTH, SOUTH}
    rules = lease_rules(manifest)
    assert rules is not None
    leases = leases_of(rules, entries)
    counted = Counter(document for _, kind, document in read if kind == SHARED)
    assert leases.fresh < NUM_DOCUMENTS, "the epoch is over"
    assert leases.num_twice == sum(counted.values()) - len(counted)
    assert leases.num_taken + len(held(leases)) == leases.fresh, "skipped"
    assert leases.num_taken == len(counted)
    assert leases.num_twice or set(counted.values()) == {1}
