"""Who reads which samples is as protocol/12-reading.md says: histories of entries, and what wrong rules would give."""

from __future__ import annotations

from typing import Any

import pytest

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.reading.leases import LeaseRules, num_doors
from dilocoxd.machines.reading.ranges import Queue, num_leased
from dilocoxd.machines.reading.volumes import VolumeLeases, first_volume_leases
from dilocoxd.wire.entry import Contribution, Entry
from tests.conformance.vectors import loaded

LOADED = loaded("reading")
ZERO = Digest(bytes(32))


def _entry(height: int, contributions: list[dict[str, Any]]) -> Entry:
    named = tuple(
        Contribution(PeerId(c["peer"]), PhaseId(c["phase"]), RoundIndex(c["base_round"]), 1, c["tokens"], ZERO)
        for c in contributions
    )
    return Entry(RunId("r"), RoundIndex(height), ZERO, ZERO, named, (ZERO,), 0, 0, 1, (), ())


def _told(leases: VolumeLeases, asked: list[dict[str, Any]]) -> dict[str, Any]:
    def queue(peer: PeerId, phase: PhaseId) -> Queue:
        return leases.read_by(peer, phase).reading(peer, phase)

    read = [
        {
            "peer": one["peer"],
            "phase": one["phase"],
            "samples": [
                sample
                for part in queue(PeerId(one["peer"]), PhaseId(one["phase"]))
                for sample in range(part.start, part.stop)
            ],
        }
        for one in asked
    ]
    fresh = sum(one.fresh for one in leases.volumes)
    return {"read": read, "taken": leases.num_taken, "twice": leases.num_twice, "fresh": fresh}


def _played(row: dict[str, Any]) -> list[dict[str, Any]]:
    given = row["rules"]
    share = (given["share"][0], given["share"][1])
    longest = max(1, num_leased(given["longest"], share))
    volumes = given.get("volumes", 1)
    doors = num_doors(given["store_tokens"] // given["seq_len"] // volumes, longest)
    absent = given["absent_rounds"] * volumes
    leases = first_volume_leases(LeaseRules(given["seq_len"], longest, doors, absent, share, volumes))
    asked = row["told"][0]["read"]
    told = [_told(leases, asked)]
    for height, contributions in enumerate(row["entries"]):
        leases = leases.extended(_entry(height, contributions))
        told.append(_told(leases, asked))
    return told


@pytest.mark.parametrize("row", LOADED["histories"], ids=lambda row: f"{row['run']}: {row['history']}")
def test_sites_read_what_the_vectors_say(row: dict[str, Any]) -> None:
    assert _played(row) == row["told"]


@pytest.mark.parametrize(
    "row", LOADED["broken_histories"], ids=lambda row: f"{row['broken']}: {row['run']}: {row['history']}"
)
def test_a_rule_that_is_a_little_wrong_is_told_apart(row: dict[str, Any]) -> None:
    assert _played(row) != row["told"]
