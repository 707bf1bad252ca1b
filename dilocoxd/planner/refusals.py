"""What cannot work, with numbers: found before a run begins, not in its first round."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dilocoxd.config.manifest import Manifest
from dilocoxd.planner.footprint import Footprint

FACTORED_SHARE_MIN: Final = 0.5
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """What this site has and uses; 0 = not known or not used, then nothing is refused for it."""

    memory_bytes: int = 0
    gpu_memory_bytes: int = 0


def refusals(manifest: Manifest, weight: Footprint, machine: Machine) -> Iterator[str]:
    """One sentence for each thing that cannot work: what, which value, what to do."""
    strategy = manifest.strategy
    if weight.factored_share < FACTORED_SHARE_MIN:
        yield (
            f"strategy.transform = 'lowrank' with strategy.lowrank_r = {strategy.lowrank_r} factors only"
            f" {weight.factored_share:.0%} of the values, because factors must be smaller than the piece of a matrix"
            f" in one segment of {strategy.segment_elements_max} elements; raise strategy.segment_elements_max or lower"
            " strategy.lowrank_r until at least half is factored, or use 'identity'"
        )
    yield from _too_large("a GPU", "the fullest stage", weight.trainer_bytes, machine.gpu_memory_bytes)
    yield from _too_large("this machine", "the site", weight.node_bytes, machine.memory_bytes)


def _too_large(place: str, what: str, needed: int, there: int) -> Iterator[str]:
    if there and needed > there:
        yield (
            f"{what} needs about {needed / GIB:.1f} GiB, but {place} has {there / GIB:.1f} GiB; use more"
            " parallel.pipeline, parallel.shard or parallel.tensor, activation_checkpointing = 'block', more"
            " parallel.microbatches, or a smaller model"
        )
