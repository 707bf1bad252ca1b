"""Makes the directory of an exported model: all of it, or nothing.

Everything is written into a hidden folder beside the destination and appears by one rename. Order of the checks: what
can be refused without reading the weights is refused first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import fsync_directory, hidden_folder, store_error, write_file
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.store.rundir import RunDir
from dilocoxd.trained import curve
from dilocoxd.trained.adapter import ADAPTER_CONFIG_NAME, adapter_config, write_adapter_weights
from dilocoxd.trained.again.held import WayGoneError
from dilocoxd.trained.anchor import AnchorFile
from dilocoxd.trained.card import Facts, card
from dilocoxd.trained.chain import ChainLink, shares
from dilocoxd.trained.choose import Tell, averaged_rounds, found_anchor
from dilocoxd.trained.found import StoredRun, newest_round
from dilocoxd.trained.model_config import config_json, generation_json
from dilocoxd.trained.numbers import FORMATS
from dilocoxd.trained.shards import write_shards
from dilocoxd.trained.tokenizer import TokenizerFiles

CARD_NAME = "README.md"
CURVE_NAME = "loss.svg"
SUMS_NAME = "SHA256SUMS"
TRIES = 8
SHARD_BYTES_MAX = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to export. `round` None: the newest snapshot; `average`: mean of so many last rounds; dtype of FORMATS."""

    round: int | None = None
    average: int = 1
    dtype: str = "float32"
    shard_bytes_max: int = SHARD_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    directory: Path
    round: int
    num_parameters: int
    total_bytes: int
    files: tuple[str, ...]


def export(run: StoredRun, wanted: Wanted, tokenizer: TokenizerFiles, out: Path, tell: Tell) -> Exported:
    """Write the model into `out`, which must not exist or be empty.

    Raises ConfigError for what cannot be exported and StoreError for a damaged source or a disk that refuses; then
    there is nothing at `out`.
    """
    require_free(out)
    # The kernel removes no "." and no link, and whoever stands in a folder stands nowhere once it is gone.
    place = Path(os.path.realpath(out))
    averaged_rounds(newest_round(run) if wanted.round is None else wanted.round, wanted.average)
    try:
        with hidden_folder(place) as folder:
            require_free(out)  # again: another process may have just ended
            anchor, chain = _chosen(run, wanted, folder / ".rebuilt", tell)
            files = _write_all(run, wanted, tokenizer, (anchor, chain), folder)
            (folder / ".rebuilt").unlink(missing_ok=True)
            total = sum((folder / name).stat().st_size for name in files)
            fsync_directory(folder)
            if place.exists():
                place.rmdir()
            folder.rename(place)
            fsync_directory(place.parent)
    except OSError as error:
        raise store_error("exporting the model", out, error) from error
    return Exported(out, anchor.round, anchor.num_parameters, total, tuple(files))


def _chosen(run: StoredRun, wanted: Wanted, path: Path, tell: Tell) -> tuple[AnchorFile, list[ChainLink]]:
    """As `found_anchor`; a newer round if a daemon dropped what led to the newest before it could be held."""
    for left in reversed(range(TRIES)):
        number = newest_round(run) if wanted.round is None else wanted.round
        try:
            return found_anchor(run, averaged_rounds(number, wanted.average), path, tell)
        except WayGoneError:
            if not left or wanted.round is not None or newest_round(run) == number:
                raise
    raise AssertionError("the last try returns or raises")


def require_free(out: Path) -> None:
    """Raise ConfigError if something is at `out` already."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise ConfigError(f"{out}: exists already; give --out a new directory, or remove this one")


def _write_all(
    run: StoredRun,
    wanted: Wanted,
    tokenizer: TokenizerFiles,
    source: tuple[AnchorFile, list[ChainLink]],
    folder: Path,
) -> list[str]:
    anchor, chain = source
    manifest = run.manifest
    special = tokenizer.special()
    tables = {"generation_config.json": generation_json(special)}
    if manifest.lora.rank:
        names = [write_adapter_weights(anchor, folder, FORMATS[wanted.dtype])]
        tables[ADAPTER_CONFIG_NAME] = adapter_config(manifest, [entry.name for entry in anchor.entries])
    else:
        names = write_shards(anchor, folder, FORMATS[wanted.dtype], wanted.shard_bytes_max)
        tables["config.json"] = config_json(manifest.model, special, wanted.dtype)
    names += tokenizer.copy_to(folder, manifest.model.seq_len)
    for name, table in tables.items():
        write_file(folder / name, (json.dumps(table, indent=2) + "\n").encode("utf-8"))
        names.append(name)
    write_file(folder / SUMS_NAME, sums(folder, names).encode("ascii"))
    names += [SUMS_NAME, *_tell_all(manifest, wanted, (anchor, chain), folder, run.run_dir)]
    return names


def _tell_all(
    manifest: Manifest,
    wanted: Wanted,
    source: tuple[AnchorFile, list[ChainLink]],
    folder: Path,
    run_dir: RunDir | None,
) -> list[str]:
    """The card and its picture."""
    anchor, chain = source
    number = anchor.round
    losses = curve.validation_losses(run_dir.logs, number) if run_dir is not None else {}
    if losses:
        title = f"{manifest.run_id}: validation loss"
        write_file(folder / CURVE_NAME, curve.draw(losses, title).encode("utf-8"))
    below = chain[:number]
    facts = Facts(
        anchor=anchor,
        averaged=averaged_rounds(number, wanted.average) if wanted.average > 1 else (),
        entry_hash=below[-1].head.hex() if below else anchor.chain_head,
        certified_by=chain[number].head.hex() if number < len(chain) else "",
        shares=shares([link.entry for link in below]),
        dtype=wanted.dtype,
        curve=CURVE_NAME if losses else "",
        losses=losses,
    )
    write_file(folder / CARD_NAME, card(manifest, facts).encode("utf-8"))
    return [CARD_NAME, *([CURVE_NAME] if losses else [])]


def sums(folder: Path, names: Iterable[str]) -> str:
    """Contents of SHA256SUMS. Raises OSError."""
    return "".join(f"{file_sha256(folder / name).hex()}  {name}\n" for name in sorted(names))
