"""By the README alone, from three bare machines to three sites that train: how long hands and machines take."""

import re

import pytest

from tests.containers.engine import engine, say
from tests.containers.first_hour import ADDRESSES, LINK, Walk, commands, three_machines
from tests.containers.node import Node

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]

HANDS_S, ALL_S = 120.0, 600.0
"""Of both together: from nothing to three sites."""


def trains_with(machine: Node, others: int) -> bool:
    """Whether a site trains and knows so many others that live."""
    status = machine.status()
    live = [peer for peer in machine.get("/v1/peers") or [] if peer.get("is_live")]
    return status.get("state") == "training" and len(live) >= others


def link_of(walk: Walk) -> str:
    found = LINK.search(walk.terminals["one"].text)
    return found[1] if found else ""


def test_from_nothing_to_three_sites_by_the_readme_alone() -> None:
    told = commands()
    with engine(), three_machines() as walk:
        everywhere = {name: list(told.install) for name in ADDRESSES}
        prompts = len(told.install) + 1
        walk.step("install, on each", everywhere, lambda: all(walk.is_idle(name, prompts) for name in ADDRESSES))
        walk.step("start the first", {"one": [told.start]}, lambda: link_of(walk))
        joining = {name: [link_of(walk)] for name in ("two", "three")}
        asked = re.compile(r"\[y/N\]", re.I)
        walk.step(
            "join with the others",
            joining,
            lambda: all(asked.search(walk.terminals[name].text) for name in joining),
            pasted=len(joining),
        )
        walk.step(
            "say yes",
            {name: ["y"] for name in joining},
            lambda: all(trains_with(machine, 2) for machine in walk.machines.values()),
        )
        say("\n" + walk.table())
        hands_s = sum(one.hands_s for one in walk.took)
        assert hands_s <= HANDS_S
        assert hands_s + sum(one.machines_s for one in walk.took) <= ALL_S, "on a machine that does nothing else"
