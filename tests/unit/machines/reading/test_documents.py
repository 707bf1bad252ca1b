"""Each document is in the model once an epoch, whatever sites do: what the chain leases, cut from real stores."""

import random
from collections import Counter

import pytest

from dilocoxd.machines.reading.leases import LeaseRules
from dilocoxd.trainer.data.sources import SourceOrder, TextSource
from dilocoxd.trainer.tokens.store import open_store
from tests.harness.documents_read import VOCAB_SIZE, Document, WrittenStore, counts_by_document, write_documents
from tests.unit.machines.reading.test_leases import check, held
from tests.unit.machines.reading.world import SEQ_LEN, World

SIZES = {"books": 300, "code": 90}
"""Samples of an epoch of each store."""
Library = tuple[dict[str, WrittenStore], SourceOrder]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("stores")
    stores = {name: write_documents(folder / name, size, SEQ_LEN, size) for name, size in SIZES.items()}
    sources = [
        TextSource(name, weight, open_store(folder / name).index.sha256(), str(folder / name))
        for name, weight in zip(SIZES, (3.0, 1.0), strict=True)
    ]
    return stores, SourceOrder(sources, SEQ_LEN, VOCAB_SIZE, seed=3)


def test_each_document_is_in_the_model_once_an_epoch_or_waits(library: Library) -> None:
    """Three sites; one is killed for good, one comes late, one leaves and comes back; phases die and branches lose."""
    world = World(random.Random(8), LeaseRules(SEQ_LEN, 6, num_doors=2, absent_rounds=12))
    for _ in range(2):
        world.arrive()
    act(world, 600)
    world.sites[0].is_alive = False
    world.sites[0].forget()
    act(world, 600)
    world.arrive()
    act(world, 600)
    away = world.sites[1]
    away.is_alive = False
    act(world, 600)
    away.is_alive = True
    act(world, 3400)
    check(world)
    leases, counted = world.leases[-1], world.counted()
    assert world.num_dead > 30
    assert world.num_forks > 20
    read = of_documents(library, counted, leases.fresh)
    waits = of_documents(library, Counter(held(leases)), leases.fresh)
    assert {document.store for document in read} == set(SIZES)
    assert max(document.epoch for document in read) >= 2
    again = of_documents(library, Counter(sample for sample, times in counted.items() if times > 1), leases.fresh)
    assert leases.num_twice or not any(map(max, again.values()))
    settled = [document for document in read if waits[document] == again[document] == {0}]
    assert all(read[document] == {1} for document in settled)
    assert len(settled) > 0.9 * len(read)


def act(world: World, num_steps: int) -> None:
    """Phases begin, end, die and reach the chain, of which the newest entries are sometimes those of a lost branch."""
    for _ in range(num_steps):
        world.rng.choice([world.begin, world.close, world.commit, world.commit, world.recover])()
        if world.rng.random() < 0.01:
            world.fork()
        if world.rng.random() < 0.03:
            killed = world.rng.choice([site for site in world.sites if site.is_alive])
            world.num_dead += (killed.training is not None) + (killed.flight is not None)
            killed.forget()


def of_documents(library: Library, counted: Counter[int], fresh: int) -> dict[Document, set[int]]:
    stores, order = library
    return counts_by_document(stores, order, counted, fresh)
