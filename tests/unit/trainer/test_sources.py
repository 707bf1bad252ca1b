"""Batches from token stores: exactly the leased samples, the run's stores and no others."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dilocoxd.cli.commands import new_manifest, own_text
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError, WorkerError
from dilocoxd.trainer.data.epochs import EpochOrder, SourceSize
from dilocoxd.trainer.data.mixed import StoreReading, order_of
from dilocoxd.trainer.data.sources import LOCATED_AT_ONCE, SourceOrder, TextSource
from dilocoxd.trainer.data.targets import NOT_TRAINED, mean_over
from dilocoxd.trainer.main import validation_of
from dilocoxd.trainer.settings import make_settings
from dilocoxd.trainer.tokens.store import TokenStore, open_store
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

SEQ_LEN = 16


@pytest.fixture
def stores(tmp_path: Path) -> list[TokenStore]:
    write_tokenizer(tmp_path)
    parts = {"first": DOCUMENTS[:200], "second": DOCUMENTS[200:]}
    return [packed(tmp_path, [write_lines(tmp_path / f"{n}.jsonl", part)], name=n) for n, part in parts.items()]


def sources(stores: list[TokenStore]) -> list[TextSource]:
    return [TextSource(s.directory.name, 2.0 - n, s.index.sha256(), str(s.directory)) for n, s in enumerate(stores)]


def order(stores: list[TokenStore]) -> SourceOrder:
    return SourceOrder(sources(stores), SEQ_LEN, 301, seed=7)


def test_phase_reads_the_windows_of_its_leased_samples(stores: list[TokenStore]) -> None:
    sizes = [SourceSize(s.directory.name, 2.0 - n, s.train.num_samples(SEQ_LEN)) for n, s in enumerate(stores)]
    samples = [5, 6, 7, 40, 41, 42]
    which, windows = EpochOrder(sizes, 7).locate(np.array(samples))
    expected = [stores[k].train.samples(np.array([w]), SEQ_LEN)[0] for k, w in zip(which, windows, strict=True)]
    reader = order(stores)
    reader.begin((5, 8, 40, 43))
    rows = [reader.batch(position, 2) for position in (0, 100, 0)]
    assert torch.equal(torch.cat([ids for ids, _ in rows]), torch.from_numpy(np.stack(expected))[:, :-1])
    assert all(torch.equal(ids[:, 1:], targets[:, :-1]) for ids, targets in rows)
    with pytest.raises(WorkerError, match="more than the 6 samples"):
        reader.batch(6, 1)


@pytest.mark.parametrize("own_stream", ["", "QmA"])
def test_batches_of_any_size_are_cut_from_the_same_samples(stores: list[TokenStore], own_stream: str) -> None:
    """Their places are found many at a time; a phase that is begun again begins at its first sample."""
    reader = SourceOrder(sources(stores), SEQ_LEN, 301, seed=7, own_stream=own_stream)
    count = 2 * LOCATED_AT_ONCE + 100
    reader.begin((10, 10 + count))
    whole, _ = reader.batch(10, count)
    samples = np.arange(10, 10 + count)
    sizes = [SourceSize(s.directory.name, 2.0 - n, s.train.num_samples(SEQ_LEN)) for n, s in enumerate(stores)]
    if not own_stream:
        which, windows = EpochOrder(sizes, 7).locate(samples)
        expected = [stores[k].train.samples(np.array([w]), SEQ_LEN)[0] for k, w in zip(which, windows, strict=True)]
        assert torch.equal(whole, torch.from_numpy(np.stack(expected))[:, :-1])
    for size in (7, LOCATED_AT_ONCE - 1):
        reader.begin((10, 10 + count))
        parts = [reader.batch(10 + first, size)[0] for first in range(0, count - size, size)]
        assert torch.equal(torch.cat(parts), whole[: size * len(parts)])
    reader.begin((10, 10 + count))
    starts = np.cumsum([0, 4, 1, 4, 4, 3, 4])
    parts = [reader.batch(10 + int(first), int(stop - first))[0] for first, stop in itertools.pairwise(starts)]
    assert torch.equal(torch.cat(parts), whole[: starts[-1]]), "of one size and of others in turn"


def test_validation_is_the_same_everywhere_and_from_every_source(stores: list[TokenStore]) -> None:
    first, second = (order(stores).validation_batches(8, 4) for _ in range(2))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))
    rows = torch.cat([ids for ids, _ in first]).tolist()
    for store in stores:
        last = store.held.num_samples(SEQ_LEN) - 1
        assert store.held.samples(np.array([last]), SEQ_LEN)[0, :-1].tolist() in rows


def test_validation_batches_belong_to_one_source_each(stores: list[TokenStore]) -> None:
    found = order(stores).validation_by_source(8, 4)
    assert len(found) == len(stores)
    together = [batch for batches in found.values() for batch in batches]
    for (ids, _), (again, _) in zip(together, order(stores).validation_batches(8, 4), strict=True):
        assert torch.equal(ids, again)
    losses = {name: (float(number), 10.0 * (number + 1)) for number, name in enumerate(found)}
    weights = [weight for _, weight in losses.values()]
    expected = sum(loss * weight for loss, weight in losses.values()) / sum(weights)
    assert mean_over(losses) == pytest.approx(expected)


def test_other_stores_than_the_runs_are_refused(stores: list[TokenStore], tmp_path: Path) -> None:
    swapped = [TextSource("first", 1.0, "ab" * 32, str(stores[0].directory))]
    with pytest.raises(ConfigError, match="is not the run's token store 'first'"):
        SourceOrder(swapped, SEQ_LEN, 301, seed=7)
    with pytest.raises(ConfigError, match=r"301 kinds of tokens, model\.vocab_size = 300"):
        SourceOrder(sources(stores), SEQ_LEN, 300, seed=7)
    with pytest.raises(ConfigError, match="is no token store"):
        SourceOrder([TextSource("first", 1.0, "ab" * 32, str(tmp_path))], SEQ_LEN, 301, seed=7)
    none_held = packed(tmp_path, [write_lines(tmp_path / "c.jsonl")], name="none", held=0.0)
    with pytest.raises(ConfigError, match="pack with --held-out"):
        order([none_held]).validation_batches(8, 4)


def test_held_out_text_is_needed_only_where_the_run_evaluates(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")], held=0.0)
    settings = {}
    for every in (0, 1):
        changes = {"model": {"seq_len": SEQ_LEN, "vocab_size": 301}, "data": {"evaluate_every_rounds": every}}
        manifest, corpora = own_text(new_manifest("tiny", changes), {"data": (f"x={store.directory}",)})
        settings[every] = make_settings(manifest, SiteConfig(paths=PathsSection(corpora=corpora)), data_stream="x")
    assert validation_of(order([store]), settings[0]) == {}
    with pytest.raises(ConfigError, match="pack with --held-out"):
        validation_of(order([store]), settings[1])


def test_with_a_document_mask_no_document_is_predicted_from_the_one_before(stores: list[TokenStore]) -> None:
    plain = order(stores)
    masked = SourceOrder(sources(stores), SEQ_LEN, 301, seed=7, has_document_mask=True)
    end = stores[0].index.eos
    assert (plain.document_end, masked.document_end) == (None, end)
    assert end is not None
    for reader in (plain, masked):
        reader.begin((0, 64))
    (ids, targets), (same, kept) = plain.batch(0, 64), masked.batch(0, 64)
    assert torch.equal(ids, same)
    assert bool((ids == end).any())
    assert torch.equal(kept, torch.where(ids == end, torch.full_like(targets, NOT_TRAINED), targets))
    assert any(bool((batch[1] == NOT_TRAINED).any()) for batch in masked.validation_batches(8, 4))
    masked.begin((0, 64))
    one_by_one = [masked.batch(0, 1) for _ in range(64)]
    assert torch.equal(torch.cat([own for own, _ in one_by_one]), ids)
    assert torch.equal(torch.cat([own for _, own in one_by_one]), kept)


def test_stores_without_an_end_token_cannot_have_a_document_mask(stores: list[TokenStore], tmp_path: Path) -> None:
    index = stores[1].directory / "index.json"
    index.write_bytes(replace(stores[1].index, eos=None).canonical_bytes())
    changed = [stores[0], open_store(stores[1].directory)]
    SourceOrder(sources(changed), SEQ_LEN, 301, seed=7)
    with pytest.raises(ConfigError, match=r"data.document_mask = true needs .* first: \d+, second: none"):
        SourceOrder(sources(changed), SEQ_LEN, 301, seed=7, has_document_mask=True)


def test_private_stores_are_read_in_the_sites_own_order_each_window_once_an_epoch(stores: list[TokenStore]) -> None:
    mine = sources(stores)[:1]
    count = stores[0].train.num_samples(SEQ_LEN)
    epochs: list[list[list[int]]] = []
    for stream in ("a", "b"):
        reader = SourceOrder(mine, SEQ_LEN, 301, seed=7, own_stream=stream)
        reader.begin(())
        epochs += [reader.batch(start, count)[0].tolist() for start in (0, count)]
        assert torch.equal(reader.batch(3, 2)[0], reader.batch(0, 5)[0][3:]), "a position means the same each time"
    every = sorted(stores[0].train.samples(np.arange(count), SEQ_LEN)[:, :-1].tolist())
    assert all(sorted(epoch) == every for epoch in epochs)
    assert all(epochs[0] != other for other in epochs[1:])


def test_shared_samples_stand_at_their_places_between_private_ones(stores: list[TokenStore]) -> None:
    """With two of five shared, samples 2 and 4 of each five are; the others go on where the last phase ended."""
    shared, private = sources(stores)
    private = replace(private, is_private=True)
    reading = StoreReading(SEQ_LEN, 301, 7)
    both = order_of([shared, private], reading, "me", (2, 5))
    leased = SourceOrder([shared], SEQ_LEN, 301, seed=7)
    own = SourceOrder([private], SEQ_LEN, 301, seed=7, own_stream="me")
    for phase, samples in enumerate(((0, 4), (40, 44))):
        both.begin(samples)
        leased.begin(samples)
        rows = torch.cat([both.batch(0, count)[0] for count in (1, 2, 4, 3)])
        places = torch.tensor([2, 4, 7, 9])
        others = torch.tensor([0, 1, 3, 5, 6, 8])
        assert torch.equal(rows[places], leased.batch(0, 4)[0])
        assert torch.equal(rows[others], own.batch(6 * phase, 6)[0])
        assert both.own_position == 6 * (phase + 1)
    again = order_of([shared, private], reading, "me", (2, 5))
    again.begin((0, 1))
    again.own_position = 12
    assert torch.equal(again.batch(0, 1)[0], own.batch(12, 1)[0]), "a checkpoint does not say where it was"
    with pytest.raises(WorkerError, match="more than the 1 samples"):
        again.batch(0, 8)
    assert list(both.validation_by_source(8, 4)) == ["first", "second"]


def test_runs_with_stores_of_one_kind_read_as_they_did(stores: list[TokenStore]) -> None:
    reading = StoreReading(SEQ_LEN, 301, 7)
    shared, private = sources(stores), [replace(one, is_private=True) for one in sources(stores)]
    found = order_of(shared, reading, "me", (1, 1))
    found.begin((0, 8))
    plain = order(stores)
    plain.begin((0, 8))
    assert torch.equal(found.batch(0, 8)[0], plain.batch(0, 8)[0])
    own = SourceOrder(private, SEQ_LEN, 301, seed=7, own_stream="me")
    assert torch.equal(order_of(private, reading, "me", (0, 1)).batch(5, 8)[0], own.batch(5, 8)[0])
