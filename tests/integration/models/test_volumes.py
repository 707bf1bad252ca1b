"""Sites that have a part of the shards each read one store while one of them is killed and comes back with others:
counted document by document.

Real daemons, outer workers, network and logs; trainers have no model and note what they are told to read. What they
would have read of it is told by the trainers' own order, from the files of that site.
"""

import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dilocoxd.config.tokens.files import volumes_of
from dilocoxd.daemon.chain.reading_plan import lease_rules
from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.machines.reading.volumes import volume_leases_of, volume_of
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.data.mixed import StoreReading, order_of
from dilocoxd.trainer.data.sources import sources_of
from dilocoxd.trainer.tokens.store import INDEX, StoreIndex, open_store
from dilocoxd.wire.entry import Contribution
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import log_of
from tests.harness.synthetic.trainer import TOKENS_PER_STEP
from tests.integration.models.test_leased_reading import OPTIONS, PATIENCE_S, held, peer_id, start, told
from tests.integration.models.test_mixed_stores import NUM_DOCUMENTS, num_contributions, write_documents

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
NUM_VOLUMES = 3


def write_store(folder: Path) -> Path:
    """One shard for each volume; documents of one window begin with their number, and say their shard."""
    folder.mkdir()
    shards = []
    for number in range(NUM_VOLUMES):
        shards.append(write_documents(folder, f"train-0000{number}", number))
    (folder / INDEX).write_bytes(StoreIndex("uint16", 300, None, "", tuple(shards)).canonical_bytes())
    return folder


def only(store: Path, folder: Path, *volumes: int) -> Path:
    """A copy with these volumes, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(store / INDEX, folder)
    cut = volumes_of(open_store(store).index, NUM_VOLUMES)
    for path in (path for volume in volumes for shard in cut[volume] for path in store.glob(f"{shard.name}.*")):
        shutil.copy(path, folder)
    return folder


def documents(site: SiteProcess, me: PeerId, contributions: list[Contribution], store: Path) -> list[tuple[int, int]]:
    """(volume, document) of all samples behind these contributions of one site."""
    manifest, settings = open_run_dir(site.run_dir).load()
    model, seed = manifest.model, manifest.seeds.data
    reading = StoreReading(model.seq_len, model.vocab_size, seed)
    # What it had when it read it may be gone since.
    paths = settings.paths.model_copy(update={"corpora": {"texts": str(store)}})
    order = order_of(sources_of(manifest, settings.model_copy(update={"paths": paths})), reading, site.name, (1, 1))
    plans, found = told(site), []
    for one in contributions:
        volume = volume_of(me, one.phase, NUM_VOLUMES)
        order.begin([bound for sample in plans[one.phase] for bound in (sample, sample + 1)], volume)
        ids_BT, _ = order.batch(0, one.tokens // TOKENS_PER_STEP)
        assert {int(ids[-1]) for ids in ids_BT} == {volume}
        found += [(volume, int(ids[0]) * 256 + int(ids[1])) for ids in ids_BT]
    return found


def volumes_read(site: SiteProcess, me: PeerId) -> set[int]:
    return {volume_of(me, PhaseId(phase), NUM_VOLUMES) for phase in told(site)}


def test_each_document_is_read_once_by_a_site_that_has_it(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")
    north = found_run(
        tmp_path, "north", *OPTIONS, "--set", f"data.volumes={NUM_VOLUMES}",
        "--data", f"texts={only(store, tmp_path / 'texts', 0, 1)}",
    )  # fmt: skip
    with sites(north):
        start(north, 0.05)
        south_store = only(store, tmp_path / "south-texts", 2)
        south = join_run(tmp_path, "south", north, "--data", f"texts={south_store}")
        with sites(south):
            start(south, 0.06)
            ids = {peer_id(site): site for site in (north, south)}
            mine, others = ids
            wait_until(lambda: num_contributions(south) >= 6, "contributions of south", PATIENCE_S, south.describe)
            assert volumes_read(south, others) == {2}
            south.kill_tree()
            only(store, south_store, 1, 2)
            north.wait_height(north.status()["height"] + 3, PATIENCE_S)
            start(south, 0.06)
            wait_until(lambda: 1 in volumes_read(south, others), "volume 1 at south", PATIENCE_S, south.describe)
            south.wait_height(north.status()["height"] + 6, PATIENCE_S)
            assert south.stop() == 0
            assert north.stop() == 0
    assert volumes_read(north, mine) == {0, 1}
    assert volumes_read(south, others) == {1, 2}
    manifest, _ = open_run_dir(north.run_dir).load()
    entries = [signed.entry for signed in log_of(north).entries()]
    by_site: dict[PeerId, list[Contribution]] = defaultdict(list)
    for one in (one for entry in entries for one in entry.contributions):
        by_site[one.peer].append(one)
    assert by_site.keys() == ids.keys()
    counted = Counter(read for peer, list_ in by_site.items() for read in documents(ids[peer], peer, list_, store))
    assert {volume for volume, _ in counted} == {0, 1, 2}
    rules = lease_rules(manifest)
    assert rules is not None
    leases = volume_leases_of(rules, entries)
    assert leases.num_twice == sum(counted.values()) - len(counted)
    for number, one_volume in enumerate(leases.volumes):
        assert one_volume.fresh < NUM_DOCUMENTS - 1, "the epoch is over"
        assert one_volume.num_taken + len(held(one_volume)) == one_volume.fresh, "skipped"
        assert one_volume.num_taken == sum(volume == number for volume, _ in counted)
    assert leases.num_twice or set(counted.values()) == {1}
