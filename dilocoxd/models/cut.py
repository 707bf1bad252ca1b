"""Which layers go to which stage: contiguous spans balanced by FLOPs, so that no rank waits for the head's owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dilocoxd.errors import ConfigError
from dilocoxd.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class StageSpan:
    """Layers [first_layer, end_layer) of the model, and whether the ends of the model belong to it."""

    stage_index: int
    num_stages: int
    first_layer: int
    end_layer: int

    @property
    def is_first(self) -> bool:
        """True if the token embedding is here."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """True if the final norm and the head are here."""
        return self.stage_index == self.num_stages - 1


def layer_flops(config: ModelConfig) -> int:
    """Multiply-adds of one block per token: projections, MLP and the attention over half the context."""
    kv_width = config.num_kv_heads * config.head_dim
    projections = 2 * config.hidden_size * config.hidden_size + 2 * config.hidden_size * kv_width
    mlp = 3 * config.hidden_size * config.intermediate_size
    attention = config.seq_len * config.hidden_size
    return projections + mlp + attention


def head_flops(config: ModelConfig) -> int:
    """Multiply-adds of the output head per token, with a share for softmax and cross entropy."""
    return config.hidden_size * config.vocab_size + 16 * config.vocab_size


def cut_stages(config: ModelConfig, num_stages: int, layers: Sequence[int] = ()) -> list[StageSpan]:
    """Spans of all stages, contiguous, at least one layer each, with the smallest possible largest cost.

    `layers`: of each stage, instead. Raises ConfigError when there are more stages than layers, or if these do not fit.
    """
    if layers and (len(layers), sum(layers)) != (num_stages, config.num_layers):
        raise ConfigError(
            f"{list(layers)} layers of {len(layers)} stages are not {config.num_layers} layers of {num_stages} stages; "
            "set parallel.layers_per_stage to one number for each stage, all layers together"
        )
    if num_stages < 1 or num_stages > config.num_layers:
        raise ConfigError(
            f"{num_stages} pipeline stages do not fit a model of {config.num_layers} layers: "
            "use fewer stages (pipeline ranks x stages per rank) or more layers"
        )
    ends = list(accumulate(layers)) or _best_ends(
        layer_flops(config), head_flops(config), config.num_layers, num_stages
    )
    starts = [0, *ends[:-1]]
    return [
        StageSpan(index, num_stages, first, end) for index, (first, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _best_ends(layer_cost: int, head_cost: int, num_layers: int, num_stages: int) -> Sequence[int]:
    # All layers cost the same, so only the size of the last stage matters: the others share the rest evenly.
    def worst(last_layers: int) -> int:
        others = num_layers - last_layers
        largest = -(-others // (num_stages - 1)) if num_stages > 1 else 0
        return max(largest * layer_cost, last_layers * layer_cost + head_cost)

    if num_stages == 1:
        return [num_layers]
    last_layers = min(range(1, num_layers - num_stages + 2), key=lambda n: (worst(n), n))
    others = num_layers - last_layers
    base, more = divmod(others, num_stages - 1)
    ends: list[int] = []
    for index in range(num_stages - 1):
        ends.append((ends[-1] if ends else 0) + base + (1 if index < more else 0))
    return [*ends, num_layers]
