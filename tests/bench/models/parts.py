"""What one of two tensor parallel ranks holds: `python -m tests.bench.models.parts [--once]`.

One JSON object for each layout: MiB of its parameters (a trainer has six times that), and of what the backward pass of
one sequence keeps, each piece of memory once, besides parameters and what the loss keeps (`logits_mib`). Counted by
hooks on what autograd saves, in one process that stands for both: nothing is sent, so numbers mean nothing and sizes
are right. `--once`: a small model.
"""

from __future__ import annotations

import argparse
import json
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage
from dilocoxd.trainer.parallel.local import local
from dilocoxd.trainer.parallel.mesh import MeshPlace, SiteMesh

MODEL: Final = ModelConfig("native", 131_072, 512, 4, 8, 8, 1408, 512)
SMALL: Final = ModelConfig("native", 512, 64, 2, 4, 4, 128, 32)
LAYOUTS: Final[dict[str, dict[str, int]]] = {
    "one process": {},
    "tensor = 2": {"tensor": 2},
    "tensor = 2, sequence = true": {"tensor": 2, "is_sequence_cut": True},
}


class Kept:
    """Memory that a backward pass will want."""

    def __init__(self, stage: StageModule) -> None:
        self._sizes: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._parameters = {_address(local(each)) for each in stage.parameters()}

    def pack(self, tensor: Tensor) -> Tensor:
        """Hook on what autograd saves. Kept alive, so that no address is used twice."""
        part = local(tensor)
        if _address(part) not in self._parameters:
            self._sizes[_address(part)] = part.untyped_storage().nbytes()
            self._alive.append(part)
        return tensor

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self._sizes.values())


def _address(part: Tensor) -> int:
    return part.untyped_storage().data_ptr()


def measured(config: ModelConfig, layout: dict[str, int]) -> dict[str, float]:
    """Of the first rank, one sequence."""
    stage = build_stage(config, StageSpan(0, 1, 0, config.num_layers), device=torch.device("cpu"))
    tensor = layout.get("tensor", 1)
    if tensor > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tensor)
        cut = bool(layout.get("is_sequence_cut"))
        SiteMesh(MeshPlace(0, tensor=tensor), torch.device("cpu"), is_sequence_cut=cut).cut(stage)
    with torch.no_grad():
        for parameter in stage.parameters():
            local(parameter).fill_(0.01)
    ids = torch.arange(config.seq_len)[None]
    kept = []
    for chunk in (config.seq_len, 0):
        stage.loss_chunk_tokens = chunk  # what is computed again is not kept
        one = Kept(stage)
        with torch.autograd.graph.saved_tensors_hooks(one.pack, lambda tensor: tensor):
            loss = stage(ids, targets_BT=ids)
        torch.autograd.backward(loss)
        kept.append(one.total)
    parameters = sum(4 * local(each).numel() for each in stage.parameters())
    if tensor > 1:
        dist.destroy_process_group()
    sizes = {"parameters_mib": parameters, "kept_mib": kept[0], "logits_mib": kept[1] - kept[0]}
    return {name: round(size / 2**20, 1) for name, size in sizes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.models.parts", description=__doc__)
    parser.add_argument("--once", action="store_true")
    config = SMALL if parser.parse_args().once else MODEL
    torch.set_num_threads(1)
    for name, layout in LAYOUTS.items():
        print(json.dumps({"layout": name, **measured(config, layout)}), flush=True)


if __name__ == "__main__":
    main()
