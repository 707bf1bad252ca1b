"""Validation loss of a flat vector of parameters, in one process (the trainers evaluate through their pipeline)."""

from __future__ import annotations

import torch
from torch import Tensor

from dilocoxd.models import ModelConfig
from dilocoxd.trainer.data import PreparedData
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.targets import cross_entropy
from dilocoxd.trainer.whole import whole_model

_BATCH_SEQUENCES = 8


@torch.no_grad()
def validation_loss(config: ModelConfig, vector: Tensor, prepared: PreparedData, num_sequences: int) -> float:
    """Mean loss in nats per token of ``vector`` on evenly spread windows of the held-out text."""
    model = whole_model(config, vector)
    order = BatchOrder(prepared, config.seq_len, seed=0, peer="")
    batches = order.validation_batches(num_sequences, _BATCH_SEQUENCES)
    losses = [float(cross_entropy(model(ids_BT), targets_BT)) for ids_BT, targets_BT in batches]
    return sum(losses) / len(losses)
