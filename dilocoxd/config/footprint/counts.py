"""What of a run is counted before it is weighed, and how it is counted by formula, before torch is loaded.

The planner counts the same from the plan that trains (planner/footprint.py); a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.config.hugging_face import expert_parameters, has_tied_head, parse_config
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.segments import num_parameters

_BITS: Final = {
    "fp32": 32.0,
    "fp16": 16.0,
    "bf16": 16.0,
    "int8": 8.125,
    "int8bins": 8.0625,
    "int4": 4.125,
    "e3m0": 4.0625,
    "int2": 2.125,
}
"""Of a value with its share of the scales (protocol/, payload formats)."""
_FACTOR_BITS: Final = 4.25
"""Of a value of a low-rank factor."""
_TOPK_SPAN: Final = 4096
_SLOTS: Final = {"sgd": 0, "nesterov": 1, "heavy_ball": 1, "adam": 2}


@dataclass(frozen=True, slots=True)
class Slice:
    """Parameters of one slice of the model, and how many blocks it has."""

    trained: int
    frozen: int
    layers: int
    is_last: bool
    """Whether the head is here."""
    matrices: int
    """Of the trained ones those in matrices, which `parallel.tensor` divides."""
    copied: int = 0
    """Values of the first slice's embedding that this one, the last, has a copy of for its head: a parameter and its
    gradient, nothing else (models/tied.py). Of a frozen one they are among `frozen`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a whole run, `slices` in the order of the pipeline."""

    slices: tuple[Slice, ...]
    payload_bytes: int
    """Of one contribution, all passes."""
    memory_bytes: int
    """What the shared state holds beside parameters and optimizer."""
    num_slots: int
    """State buffers of the outer optimizer, each as large as the parameters."""

    @property
    def parameters(self) -> int:
        """What is trained, and exchanged."""
        return sum(one.trained for one in self.slices)


def model_parameters(manifest: Manifest) -> int:
    """Parameters of the model, near enough for memory and disk; with an adapter, of the frozen model under it."""
    model = manifest.model
    return num_parameters(model) + (expert_parameters(model.config) if model.kind == "hf" else 0)


def counted(manifest: Manifest, shape: SiteShape) -> Counts:
    """By formula, from the sizes in the manifest: within a few percent of the plan for what dilocoxd builds itself."""
    model, adapter = model_parameters(manifest) - _tied_values(manifest), _adapter_parameters(manifest)
    trained, frozen = (adapter, model) if manifest.lora.rank else (model, 0)
    payload = _payload_bytes(manifest, trained)
    keeps_results = manifest.strategy.transform == "lowrank" or manifest.aggregation.centered_clip
    return Counts(
        slices=_slices(manifest, shape, trained, frozen),
        payload_bytes=payload,
        memory_bytes=payload if keeps_results else 0,
        num_slots=_SLOTS[manifest.outer.optimizer],
    )


def _slices(manifest: Manifest, shape: SiteShape, trained: int, frozen: int) -> tuple[Slice, ...]:
    """As the site cuts; else even ones: the plan gives the last one fewer blocks, because the head costs time."""
    count, layers = shape.stages * shape.slices_per_process, manifest.model.num_layers
    even = [layers * (index + 1) // count - layers * index // count for index in range(count)]
    first, found = 0.0, []
    for index, number in enumerate(shape.layers or even):
        share = number / layers if shape.layers else 1 / count
        end = first + share
        here, under = (round(numel * end) - round(numel * first) for numel in (trained, frozen))
        is_last = index == count - 1
        copy = _tied_values(manifest) if is_last and count > 1 else 0
        under, copied = (under + copy, 0) if frozen else (under, copy)
        # Vectors are not counted by formula: what a model has besides matrices is next to nothing.
        found.append(Slice(here, under, number, is_last, matrices=here, copied=copied))
        first = end
    return tuple(found)


def _tied_values(manifest: Manifest) -> int:
    """Of the embedding that is the head, too; 0: they are two matrices."""
    model = manifest.model
    is_tied = model.kind == "hf" and has_tied_head(parse_config(model.config))
    return model.vocab_size * model.hidden_size if is_tied else 0


def _block_matrices(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """(rows, columns) of the matrices of a block by their last names in LLaMA-shaped models."""
    model = manifest.model
    width, kv, inner = (
        model.hidden_size,
        model.hidden_size * model.num_kv_heads // model.num_heads,
        model.intermediate_size,
    )
    return {
        "q_proj": (width, width),
        "k_proj": (kv, width),
        "v_proj": (kv, width),
        "o_proj": (width, width),
        "gate_proj": (inner, width),
        "up_proj": (inner, width),
        "down_proj": (width, inner),
    }


def _adapter_parameters(manifest: Manifest) -> int:
    """Of two narrow matrices beside each that is adapted; all of a block where its names are not the usual ones."""
    matrices, targets = _block_matrices(manifest), manifest.lora.targets
    adapted = [matrices[name] for name in targets if name in matrices] or list(matrices.values())
    return manifest.model.num_layers * manifest.lora.rank * sum(map(sum, adapted))


def _payload_bytes(manifest: Manifest, trained: int) -> int:
    strategy = manifest.strategy
    # Of each value that top-k sends: where it is (12 bits), and two bits; of each span a scale.
    topk_bits = (14 * strategy.topk + 32) / _TOPK_SPAN
    bits = topk_bits if strategy.codec == "topk" else _BITS[strategy.codec]
    match strategy.transform:
        case "lowrank":
            return round(_factored_bits(manifest, trained, bits) / 8)
        case "mask":
            return round(bits * trained / strategy.mask_keep_one_in / 8)
        case "identity":
            return round(bits * trained / max(1, strategy.fragments) / 8)


def _factored_bits(manifest: Manifest, trained: int, bits: float) -> float:
    """Each piece of a matrix in one segment sends two factors, where these are smaller than the piece."""
    if manifest.lora.rank or manifest.model.kind == "external":
        return bits * trained  # an upper bound: the matrices are narrow, or not of the usual names
    model, strategy = manifest.model, manifest.strategy
    blocks = [*_block_matrices(manifest).values()] * model.num_layers
    total = 0.0
    for rows, columns in [*blocks, *[(model.vocab_size, model.hidden_size)] * 2]:
        pieces = 1 + rows * columns // strategy.segment_elements_max
        factored = strategy.lowrank_r * (rows + pieces * columns)
        total += min(_FACTOR_BITS * factored, bits * rows * columns)
    return total
