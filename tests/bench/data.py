"""How fast text is packed and read: `python -m tests.bench.data [--mib N] [--gib N] [--samples N] [--steps N]`.

Packing: MB of text per second of CPU time of one process, on the sources of the standard library, with tokenizers of
8,192 tokens trained on them that split text as GPT-2 and as Qwen do; then the tokenizers library alone, which
gets every fourth stretch of the same text. Reading: tokens per second in the order of exact epochs from a sparse store,
and how much the memory of the reader grows. A trainer of P parameters on hardware of F operations per second needs
F / 6 P tokens. Beside a trainer: inner steps of presets on one core, each batch read right before its step, so that
both have the same machine in the same minute; tokens per second of CPU time of reading over those of training.
"""

import argparse
import resource
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.data.epochs import EpochOrder, SourceSize
from dilocoxd.trainer.data.sources import SourceOrder, TextSource
from dilocoxd.trainer.tokens.encode import WORK, PackSettings, pack_piece
from dilocoxd.trainer.tokens.inputs import TextPiece
from dilocoxd.trainer.tokens.splits import QWEN
from dilocoxd.trainer.tokens.store import INDEX, ShardInfo, StoreIndex, open_store
from tests.bench.trainer import settings_for, stepped, training_of

VOCAB_SIZE = 8192
SEQ_LEN = 1024
BATCH = 16
STRETCH = 1 << 16
OPERATIONS_PER_S = 1e12
"""Of a desktop CPU or small GPU that really arrives, for the comparison with what a trainer needs."""
PARAMETERS = 125e6


def standard_library(num_bytes: int) -> str:
    """So much of its sources, again and again if need be."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    text = "".join(file.read_text("utf-8", "replace") for file in files)
    return (text * (1 + num_bytes // len(text)))[:num_bytes]


def pack(folder: Path, mib: int) -> None:
    """Print the speed of one process, and that of the library."""
    text = standard_library(mib << 20)
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    (folder / WORK).mkdir()
    num_bytes = path.stat().st_size
    like_gpt2 = train_tokenizer([text[: 4 << 20]], VOCAB_SIZE)
    for number, (name, tokenizer) in enumerate((("GPT-2", like_gpt2), ("Qwen", _like_qwen(like_gpt2)))):
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = PackSettings(str(folder / "tokenizer.json"), "uint16", None, "text", 0.0)
        cpu = time.process_time()
        packed = pack_piece(folder, TextPiece(number, path, ".txt", 0, num_bytes, num_bytes), settings)
        ours = num_bytes / 1e6 / (time.process_time() - cpu)
        stretches = [text[start : start + STRETCH] for start in range(0, len(text), 4 * STRETCH)]
        cpu = time.process_time()
        for stretch in stretches:
            tokenizer.encode_batch_fast([stretch], add_special_tokens=False)
        theirs = sum(map(len, stretches)) / 1e6 / (time.process_time() - cpu)
        print(f"packing as {name} splits: {ours:.1f} MB/s of CPU time, the library alone {theirs:.1f},", end=" ")
        print(f"{num_bytes / packed.shards[0].num_tokens:.2f} bytes a token")


def _like_qwen(tokenizer: Tokenizer) -> Tokenizer:
    found = Tokenizer.from_str(tokenizer.to_str())
    found.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"), to_bytes])
    return found


def sparse_store(folder: Path, gib: float) -> TextSource:
    """A store of zeros that takes no disk space."""
    num_tokens = int(gib * (1 << 29))
    with (folder / "train-00000.bin").open("wb") as file:
        file.truncate(2 * num_tokens)
    np.asarray([num_tokens], dtype="<i8").tofile(folder / "train-00000.ends")
    shard = ShardInfo("train-00000", num_tokens, 1, "0" * 64, "0" * 64)
    (folder / INDEX).write_bytes(StoreIndex("uint16", 256, None, "", (shard,)).canonical_bytes())
    return TextSource("zeros", 1.0, open_store(folder).index.sha256(), str(folder))


def read(folder: Path, gib: float, num_samples: int) -> None:
    """Print speed and memory of a reader."""
    source = sparse_store(folder, gib)
    order = SourceOrder([source], SEQ_LEN, 1000, seed=1)
    order.begin((0, num_samples))
    order.batch(0, BATCH)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    began = time.perf_counter()
    for _ in range(num_samples // BATCH - 1):
        order.batch(0, BATCH)
    rate = (num_samples - BATCH) * SEQ_LEN / (time.perf_counter() - began)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before
    needed = OPERATIONS_PER_S / (6 * PARAMETERS)
    print(f"reading: {rate / 1e6:.1f} million tokens/s in batches of {BATCH} x {SEQ_LEN},", end=" ")
    print(
        f"{rate / needed:.0f} times what {PARAMETERS / 1e6:.0f} M parameters at {OPERATIONS_PER_S:.0e}/s need;",
        end=" ",
    )
    print(f"memory grew by {growth} MiB over a store of {gib:g} GiB")


def read_beside_a_trainer(folder: Path, preset: str, num_steps: int) -> None:
    """Print how much faster than its trainer a preset's batches are read, from the store of `read`."""
    settings = settings_for(manifest_from_tables(preset_tables(preset), source=preset), 1, 0)
    model, batch = settings.model, settings.pipeline.batch_sequences
    source = TextSource("zeros", 1.0, open_store(folder).index.sha256(), str(folder))
    order = SourceOrder([source], model.seq_len, model.vocab_size, seed=1)
    training = training_of(settings)
    order.begin((0, batch))
    stepped(training, *order.batch(0, batch))  # the first step makes the optimizer's memory, the first batch the map
    order.begin((0, num_steps * batch))  # what is read ahead counts
    spent = np.zeros(2)
    for number in range(num_steps):
        marks = [time.process_time()]
        read_batch = order.batch(number * batch, batch)
        marks.append(time.process_time())
        stepped(training, *read_batch)
        marks.append(time.process_time())
        spent += np.diff(marks)
    reading, trained = num_steps * batch * model.seq_len / np.maximum(spent, 1e-9)
    parameters = sum(parameter.numel() for _, parameter in training.pipeline.parameters())
    print(f"beside a trainer of {parameters / 1e6:.2f} M parameters, {batch} x {model.seq_len}:", end=" ")
    print(f"reads {reading / 1e6:.2f} and trains {trained / 1e6:.4f} million tokens/s of CPU time,", end=" ")
    print(f"{reading / trained:.0f} times what that of {preset} needs")


def permute(num_samples: int) -> None:
    """Print the speed of the order alone."""
    order = EpochOrder([SourceSize("a", 3.0, 10**9), SourceSize("b", 1.0, 10**7)], 7)
    began = time.perf_counter()
    order.locate(np.arange(num_samples))
    print(f"order: {num_samples / (time.perf_counter() - began) / 1e6:.1f} million samples/s")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=32, help="of text to pack")
    parser.add_argument("--gib", type=float, default=2.0, help="of the store that is read")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--presets", nargs="*", default=["tiny", "demo"], help="read beside their trainers")
    parser.add_argument("--steps", type=int, default=20, help="of each of these trainers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        for part in ("pack", "read"):
            (Path(name) / part).mkdir()
        pack(Path(name) / "pack", options.mib)
        read(Path(name) / "read", options.gib, options.samples)
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for preset in options.presets:
            read_beside_a_trainer(Path(name) / "read", preset, options.steps)
        dist.destroy_process_group()
    permute(options.samples)


if __name__ == "__main__":
    main()
