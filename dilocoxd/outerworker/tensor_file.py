"""Which tensors the files of a snapshot hold: their data is a shared buffer as it is (store/tensor_header.py)."""

from __future__ import annotations

from dilocoxd.outerworker.plan import HEADER_BYTES, OuterPlan
from dilocoxd.store import snapshots
from dilocoxd.store.tensor_header import TensorEntry


def anchor_entries(plan: OuterPlan) -> list[TensorEntry]:
    """The parameters under their canonical names: exactly ANCHOR's bytes."""
    return [TensorEntry(param.name, param.shape) for param in plan.layout.params]


def memory_entries(plan: OuterPlan) -> list[TensorEntry]:
    """One header of MEMORY and all its regions."""
    return [TensorEntry("memory", (plan.memory_total - HEADER_BYTES,), "U8")]


def snapshot_files(plan: OuterPlan) -> list[tuple[str, list[TensorEntry]]]:
    """Names and contents of the files of a snapshot of this run."""
    files = [(snapshots.ANCHOR_NAME, anchor_entries(plan))]
    if plan.num_slots:
        files.append((snapshots.MOMENTUM_NAME, momentum_entries(plan)))
    if plan.has_memory:
        files.append((snapshots.MEMORY_NAME, memory_entries(plan)))
    return files


def momentum_entries(plan: OuterPlan) -> list[TensorEntry]:
    """MOMENTUM's bytes: the parameters' names if there is one slot, else one tensor per segment and slot."""
    if plan.num_slots == 1:
        return anchor_entries(plan)
    return [
        TensorEntry(f"segment{segment.index}.slot{slot}", (segment.numel,))
        for segment in plan.layout.segments
        for slot in range(plan.num_slots)
    ]
