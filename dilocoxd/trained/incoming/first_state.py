"""``python -m dilocoxd.trained.incoming.first_state``: shared state 0 of a run that starts from pretrained weights.

Checks that the model can be cut, then streams the weights of a directory, or those of a state of another run, into the
files of a snapshot: anchor in float32, optimizer state of zeros, schedule of the start. Prints one JSON line: hashes of
the files and of the state. What publishes it as snapshot 0 is store/first_state.py, in the process of the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.errors import ConfigError, DilocoxdError, of_the_system
from dilocoxd.models import ModelConfig, StageSpan, build_stage
from dilocoxd.models.build import check_model
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.outerworker.plan import HEADER_BYTES, OuterPlan, make_plan
from dilocoxd.outerworker.schedule_memory import Memory
from dilocoxd.outerworker.tensor_file import anchor_entries, memory_entries, momentum_entries
from dilocoxd.store import snapshots
from dilocoxd.store.durable import Corrupt, SteadyWriter, store_error
from dilocoxd.store.tensor_header import encode_header, read_header
from dilocoxd.trained.found import find_run
from dilocoxd.trained.incoming.stored_state import StoredState
from dilocoxd.wire.layout import ParamSpec, Segment
from dilocoxd.wire.state_digest import AnchorStream, Leaf, root_of

_METADATA = {"round": "0"}
Tell = Callable[[str], None]


class ParameterSource(Protocol):
    """Where parameters come from."""

    def require(self, specs: tuple[ParamSpec, ...]) -> None:
        """Raise ConfigError unless all of these are there."""

    def values(self, spec: ParamSpec) -> Iterator[npt.NDArray[np.float32]]:
        """One parameter's values, in pieces."""


def write_first_state(plan: OuterPlan, source: ParameterSource, folder: Path, tell: Tell) -> dict[str, Any]:
    """Write the files of state 0 into `folder`; anchor_sha256 and state_digest in hex, and `segments` for its index.

    Raises ConfigError for weights that do not fit the model, StoreError for a disk that refuses.
    """
    return _with_anchor(plan, folder, lambda path, memory: _write_anchor(plan, source, path, tell, memory))


def complete_first_state(plan: OuterPlan, folder: Path, tell: Tell) -> dict[str, Any]:
    """The same where a peer's anchor is in `folder` already: the rest of state 0 follows from the plan.

    What it is called is computed, so that whoever knows the state's digest knows whether it is the run's.
    """
    return _with_anchor(plan, folder, lambda path, memory: _read_anchor(plan, path, tell, memory))


def _with_anchor(plan: OuterPlan, folder: Path, anchor: Callable[[Path, Memory], list[Leaf]]) -> dict[str, Any]:
    try:
        memory = _write_memory(plan, folder / snapshots.MEMORY_NAME)
        _write_momentum(plan, folder / snapshots.MOMENTUM_NAME)
        leaves = anchor(folder / snapshots.ANCHOR_NAME, memory)
    except OSError as error:
        raise store_error("writing the first state", folder, error) from error
    root = root_of(0, memory.digested_header(0), leaves)
    segments = [(segment.numel, leaf.whole.hex()) for segment, leaf in zip(plan.segments, leaves, strict=True)]
    return {
        "anchor_sha256": root.anchor_sha256.hex(),
        "state_digest": root.state_digest.hex(),
        "segments": segments,
    }


def _write_anchor(plan: OuterPlan, source: ParameterSource, path: Path, tell: Tell, memory: Memory) -> list[Leaf]:
    """The leaves of state 0, whose optimizer state is zeros."""
    source.require(tuple(plan.layout.params))  # what is missing is said before gigabytes are written
    hashes = _hashes_of(plan, memory)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        writer = SteadyWriter(fd)
        offset = writer.write(encode_header(anchor_entries(plan), _METADATA), 0)
        for number, spec in enumerate(plan.layout.params):
            if number % 100 == 0:
                tell(f"reading parameter {number} of {len(plan.layout.params)}")
            for piece in source.values(spec):
                data = piece.astype("<f4", copy=False).tobytes()
                hashes.add(data)
                offset = writer.write(data, offset)
        os.fsync(fd)
    finally:
        os.close(fd)
    return hashes.leaves


def _read_anchor(plan: OuterPlan, path: Path, tell: Tell, memory: Memory) -> list[Leaf]:
    """The leaves of state 0 with the anchor at `path`. Raises ConfigError for a file that is no anchor of this run."""
    try:
        offset, entries, _ = read_header(path)
    except Corrupt as error:
        raise ConfigError(f"a peer sent no model ({error}); join through another peer") from error
    left = sum(entry.num_bytes for entry in entries)
    if entries != anchor_entries(plan) or path.stat().st_size != offset + left:
        raise ConfigError("a peer sent another model than the run's; join through another peer")
    hashes = _hashes_of(plan, memory)
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(snapshots.CHUNK_BYTES):
            hashes.add(data)
    tell(f"reading the model that came: {left:,} bytes")
    return hashes.leaves


def _hashes_of(plan: OuterPlan, memory: Memory) -> AnchorStream:
    return AnchorStream([4 * s.numel for s in plan.segments], lambda index: _rest(plan, memory, plan.segments[index]))


def _rest(plan: OuterPlan, memory: Memory, segment: Segment) -> Iterator[bytes | memoryview]:
    """What the digest takes of a segment of state 0 behind its anchor."""
    left, zeros = 4 * segment.numel * plan.num_slots, bytes(snapshots.CHUNK_BYTES)
    while left:
        count = min(left, len(zeros))
        yield zeros[:count]
        left -= count
    yield from memory.remembered(segment, None)


def _write_momentum(plan: OuterPlan, path: Path) -> None:
    """A file of zeros, which takes no room on most disks."""
    if not plan.num_slots:
        return
    with path.open("xb") as file:
        file.write(encode_header(momentum_entries(plan), _METADATA))
        file.truncate(file.tell() + 4 * plan.layout.numel * plan.num_slots)
        file.flush()
        os.fsync(file.fileno())


def _write_memory(plan: OuterPlan, path: Path) -> Memory:
    memory = Memory(plan, memoryview(bytearray(plan.memory_total)))
    memory.begin()
    if not plan.has_memory:
        return memory
    with path.open("xb") as file:
        file.write(encode_header(memory_entries(plan), _METADATA))
        file.write(memory.header_bytes(0))
        file.truncate(file.tell() + plan.memory_total - 2 * HEADER_BYTES)
        file.flush()
        os.fsync(file.fileno())
    return memory


def check_frozen(manifest: Manifest, source: Pretrained, tell: Tell) -> tuple[ParamSpec, ...]:
    """The parameters under the run's adapter. Raises ConfigError unless `source` holds all, in finite numbers."""
    model = ModelConfig.of_run(manifest)
    whole = StageSpan(stage_index=0, num_stages=1, first_layer=0, end_layer=model.num_layers)
    stage = build_stage(model, whole, device=torch.device("meta"))
    specs = tuple(ParamSpec(name, tuple(param.shape)) for name, param in stage.frozen_parameters())
    source.require(specs)  # what is missing is said before gigabytes are read
    for number, spec in enumerate(specs):
        if number % 100 == 0:
            tell(f"reading parameter {number} of {len(specs)}")
        for _ in source.values(spec):
            pass  # raises for what is no number
    return specs


def tell_left_out(source: Pretrained, specs: tuple[ParamSpec, ...], tell: Tell) -> None:
    """Say what the files hold beside the model: a head for more tokens ahead may be, layers should not."""
    if names := source.left_out(specs):
        tell(
            f"left out: {len(names)} tensors that config.json has no place for, the first is {names[0]!r}; if that is"
            " not meant, use the config.json that belongs to these files"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the model and, with --init or --from-run, write the state; 78 for what the user must change, else 74."""
    parser = argparse.ArgumentParser(
        prog="python -m dilocoxd.trained.incoming.first_state", description="State 0 of a run."
    )
    parser.add_argument("--run-toml", type=Path, required=True)
    parser.add_argument("--init", type=Path, default=None, help="directory of the pretrained model")
    parser.add_argument("--fetched", action="store_true", help="the anchor is in --out, from a peer")
    parser.add_argument("--from-run", type=Path, default=None, help="run directory or snapshot of another run")
    parser.add_argument("--round", type=int, default=0, help="which state of it")
    parser.add_argument("--out", type=Path, default=None, help="folder for the files of the snapshot")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    try:
        manifest = load_manifest(options.run_toml)
        check_model(ModelConfig.of_run(manifest), keeps_documents_apart=manifest.data.document_mask)
        plan = make_plan(manifest)  # in its own sizes, of which the tiny one that was checked has few
        found: dict[str, Any] = {}
        if options.init is not None:
            source = Pretrained(options.init)
            if manifest.lora.rank:
                taken = check_frozen(manifest, source, tell)
            else:
                found = write_first_state(plan, source, options.out, tell)
                taken = tuple(plan.layout.params)
            tell_left_out(source, taken, tell)
            found["files"] = source.hashes(tell)
        elif options.fetched:
            found = complete_first_state(plan, options.out, tell)
        elif options.from_run is not None:
            scratch = options.out / ".parent"
            with StoredState(find_run(options.from_run), options.round, scratch, tell) as state:
                found = write_first_state(plan, state, options.out, tell) | {"files": {}}
                state.finish()
    except (DilocoxdError, OSError) as error:
        tell(f"error: {of_the_system(error) if isinstance(error, OSError) else error}")
        return ConfigError.exit_code if isinstance(error, ConfigError) else 74
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
