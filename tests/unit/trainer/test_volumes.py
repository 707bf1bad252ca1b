"""A store in volumes: each is read once an epoch, and a site with some of its files reads the same as one with all."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dilocoxd.config.tokens.files import files_of, require_volumes, volumes_of
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data.mixed import StoreReading, order_of
from dilocoxd.trainer.data.sources import SourceOrder, TextSource
from dilocoxd.trainer.tokens import __main__ as tokens_command
from dilocoxd.trainer.tokens.store import TRAIN, TokenStore, open_store
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

SEQ_LEN, NUM_VOLUMES = 16, 3


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    """Of seven shards."""
    write_tokenizer(tmp_path)
    size = len(DOCUMENTS) // 7
    files = [write_lines(tmp_path / f"{n}.jsonl", DOCUMENTS[n * size : (n + 1) * size]) for n in range(7)]
    return packed(tmp_path, files, name="texts")


def without(store: TokenStore, *volumes: int) -> TextSource:
    """A copy that lacks these."""
    folder = store.directory.parent / f"without-{'-'.join(map(str, volumes))}"
    shutil.copytree(store.directory, folder)
    for volume in volumes:
        for shard in volumes_of(store.index, NUM_VOLUMES)[volume]:
            for path in folder.glob(f"{shard.name}.*"):
                path.unlink()
    return TextSource("texts", 1.0, store.index.sha256(), str(folder), num_volumes=NUM_VOLUMES)


def whole(store: TokenStore) -> TextSource:
    return TextSource("texts", 1.0, store.index.sha256(), str(store.directory), num_volumes=NUM_VOLUMES)


def read(source: TextSource, volume: int, start: int, stop: int) -> torch.Tensor:
    order = SourceOrder([source], SEQ_LEN, 301, seed=7)
    order.begin((start, stop), volume)
    return order.batch(0, stop - start)[0]


def test_volumes_are_whole_shards_of_about_one_size_and_all_of_the_store(store: TokenStore) -> None:
    for count in (1, 2, 3, 7):
        cut = volumes_of(store.index, count)
        assert tuple(shard for volume in cut for shard in volume) == store.index.of_part(TRAIN)
        sizes = [sum(shard.num_tokens for shard in volume) for volume in cut]
        longest = max(shard.num_tokens for shard in store.index.of_part(TRAIN))
        assert max(sizes) - min(sizes) <= 2 * longest


def test_an_epoch_of_each_volume_is_all_of_its_windows_once(store: TokenStore) -> None:
    for volume, shards in enumerate(volumes_of(store.index, NUM_VOLUMES)):
        tokens = np.concatenate([np.fromfile(store.place(s).path, store.index.dtype) for s in shards]).astype(np.int64)
        num_samples = (len(tokens) - 1) // SEQ_LEN
        windows = sorted(tokens[n * SEQ_LEN : (n + 1) * SEQ_LEN].tolist() for n in range(num_samples))
        for epoch in (0, 1):
            found = read(whole(store), volume, epoch * num_samples, (epoch + 1) * num_samples)
            assert sorted(found.tolist()) == windows


def test_a_site_with_some_shards_reads_the_same(store: TokenStore) -> None:
    some = without(store, 0, 2)
    assert files_of(Path(some.path)).check(NUM_VOLUMES) == {1}
    assert torch.equal(read(some, 1, 5, 40), read(whole(store), 1, 5, 40))
    assert not torch.equal(read(whole(store), 0, 5, 40), read(whole(store), 1, 5, 40))
    with pytest.raises(ConfigError, match=r"train-0000\d\.bin cannot be read"):
        read(some, 0, 5, 40)


def test_validation_needs_all_that_is_held_out_and_is_equal_everywhere(store: TokenStore) -> None:
    some = without(store, 1)
    orders = [SourceOrder([one], SEQ_LEN, 301, seed=7) for one in (some, whole(store))]
    first, second = (order.validation_batches(8, 4) for order in orders)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))
    held = next(Path(some.path).glob("held-*.bin"))
    held.unlink()
    with pytest.raises(ConfigError, match=f"{held.name} is missing; copy or pack it again"):
        SourceOrder([some], SEQ_LEN, 301, seed=7)


def test_a_site_without_a_whole_volume_is_refused(store: TokenStore) -> None:
    with pytest.raises(ConfigError, match="is missing, and none of its 3 volumes is whole; copy or pack it again"):
        open_store(Path(without(store, 0, 1, 2).path), NUM_VOLUMES)
    with pytest.raises(ConfigError, match="is missing; copy or pack it again"):
        open_store(Path(without(store, 1).path))
    with pytest.raises(ConfigError, match="would have 0 of its 7 shards and no window of 17 tokens"):
        require_volumes("texts", store.index, 50, SEQ_LEN)


def test_private_samples_stand_between_those_of_a_volume(store: TokenStore) -> None:
    own = TextSource("own", 1.0, store.index.sha256(), str(store.directory), is_private=True)
    reading = StoreReading(SEQ_LEN, 301, 7)
    order = order_of([without(store, 0), own], reading, "me", (1, 2))
    order.begin((5, 15), 2)
    ids, _ = order.batch(0, 20)
    assert torch.equal(ids[1::2], read(whole(store), 2, 5, 15))


def test_show_says_what_is_in_each_volume_and_what_is_here(
    store: TokenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    some = without(store, 0, 2)
    assert tokens_command.main(["show", "--volumes", "3", "--check", "--seq-len", "16", some.path]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("volume ")]
    assert [line.rsplit(", ", 1)[1] for line in rows] == ["not here", "here", "not here"]
    assert rows[1].split()[2].startswith("train-0000")
    assert tokens_command.main(["show", some.path]) == 78
    assert tokens_command.main(["show", "--volumes", "0", some.path]) == 78
    shard = volumes_of(store.index, NUM_VOLUMES)[1][0]
    path = Path(some.path) / f"{shard.name}.bin"
    path.write_bytes(bytes(path.stat().st_size))
    assert tokens_command.main(["show", "--volumes", "3", "--check", some.path]) == 78
    assert "is not what it was when it was packed" in capsys.readouterr().err
