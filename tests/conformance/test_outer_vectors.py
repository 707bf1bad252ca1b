"""protocol/vectors/outer.json against the implementation: weights, means, outer steps, bit for bit (C6, C7, X9)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.registry import codec_from_name
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.outer.clipping import clip_record, count_
from dilocoxd.outer.contrary import contrary_shares
from dilocoxd.outer.optimizers import outer_from_name, zero_slots
from dilocoxd.outer.reduce import reduce_in_chunks, share_norms, weighted_mean_
from dilocoxd.outer.rounding import mean_weights, participation
from dilocoxd.wire.entry import Contribution, Entry
from tests.conformance.vectors import floats, loaded

LOADED: dict[str, Any] = loaded("outer")
OPTIONS = ("lr", "momentum", "beta2", "eps")


def bits(tensor: Tensor) -> str:
    return tensor.numpy().tobytes().hex()


@pytest.mark.parametrize("row", LOADED["steps"], ids=lambda row: f"{row['optimizer']}-{row['lr']}")
def test_outer_steps_have_the_bits_of_the_vectors(row: dict[str, Any]) -> None:
    optimizer = outer_from_name(row["optimizer"], **{key: row[key] for key in OPTIONS if key in row})
    x = floats(row["x"])
    slots = zero_slots(optimizer, x.numel())
    for index, step in enumerate(row["steps"]):
        optimizer.step_(x, slots, floats(step["g"]), index)
        assert bits(x) == step["x"], f"step {index}"
        assert [bits(slot) for slot in slots] == step["slots"], f"step {index}"


@pytest.mark.parametrize("row", LOADED["means"], ids=lambda row: f"{len(row['tokens'])}-{row['missing']}")
def test_means_have_the_bits_of_the_vectors(row: dict[str, Any]) -> None:
    ramps = row["ramps"] or [64] * len(row["tokens"])
    part = participation(ramps.count(64), row["missing"])
    factors = [part * late for late in row["late"] or [1.0] * len(row["tokens"])]
    weights = mean_weights(row["tokens"], factors, row["ramps"])
    assert bits(torch.tensor(weights)) == row["weights"]
    codec = codec_from_name("fp32")
    shares = [bytes.fromhex(share) for share in row["shares"]]
    out = torch.empty_like(floats(row["mean"]))
    weighted_mean_(codec, shares, weights, out)
    assert bits(out) == row["mean"]
    payload = bytearray(codec.payload_bytes(out.numel()))
    reduce_in_chunks(codec, shares, weights, floats(row["residual"]), out.numel(), payload)
    assert payload.hex() == row["encoded_values"]


@pytest.mark.parametrize("row", LOADED["clips"], ids=lambda row: f"{len(row['shares'])} shares")
def test_factors_and_records_are_those_of_the_vectors(row: dict[str, Any]) -> None:
    shares = [bytes.fromhex(share) for share in row["shares"]]
    numel = floats(row["shares"][0]).numel()
    center = floats(row["center"]) if row["center"] else None
    norms = share_norms(codec_from_name("fp32"), shares, numel, center)
    record = clip_record(norms, row["recent"], row["kappa"])
    assert bits(torch.tensor(record.factors)) == row["factors"]
    assert record.encode(row["places"]).hex() == row["record"]
    for share, factor, expected in zip(row["shares"], record.factors, row["counted"], strict=True):
        values = floats(share).clone()
        count_(values, factor, center)
        assert bits(values) == expected


@pytest.mark.parametrize("row", LOADED["directions"], ids=lambda row: str(row["contrary"]))
def test_who_is_contrary_follows_the_vectors(row: dict[str, Any]) -> None:
    shares, codec = [bytes.fromhex(share) for share in row["shares"]], codec_from_name("fp32")
    numel = floats(row["shares"][0]).numel()
    found = contrary_shares(codec, shares, share_norms(codec, shares, numel), numel)
    assert sorted(found) == row["contrary"]


@pytest.mark.parametrize("row", LOADED["turnouts"], ids=lambda row: str(row["participation_rounds"]))
def test_what_a_round_is_short_of_follows_from_the_entries_before_it(row: dict[str, Any]) -> None:
    genesis = Digest(bytes(32))
    view = ChainView(RunId("r"), RoundIndex(0), genesis, genesis, participation_rounds=row["participation_rounds"])
    for index, (present, short_of) in enumerate(zip(row["contributors"], row["missing"], strict=True)):
        assert view.missing(present) == short_of, index
        named = tuple(
            Contribution(PeerId(f"Qm{n}"), PhaseId(index), RoundIndex(index), 1, 1, genesis) for n in range(present)
        )
        entry = Entry(view.run_id, view.height, view.head, genesis, named, (genesis,), 0, 0, 1, view.tip_voters, ())
        view = view.extended(entry, genesis)


def test_vectors_cover_every_outer_optimizer() -> None:
    assert {row["optimizer"] for row in LOADED["steps"]} == {"sgd", "heavy_ball", "nesterov", "adam"}
