"""Rounds of two sites whose firewalls let in nothing but p2pd: data connections are on, and cost them nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.swarm.direct.plane import CONNECT_S, HOSTS_TRIED
from dilocoxd.swarm.direct.routes import RETRY_MAX_S
from tests.harness.internet.life import committed, founded, peer_of, wait_entry_with
from tests.harness.running.network_namespaces import NamespacedSite, Network
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.strikes import stood_still_s

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PATIENCE_S = 120.0
DATA_PORT = 31338
NEXT_TRY_S = RETRY_MAX_S + HOSTS_TRIED * CONNECT_S + 30.0
"""A port that stayed shut for long is tried again after so long at most."""
EXCHANGE_S_MAX = 2.0
"""Below every time-out of a connection, above what a busy machine takes for 4 kB."""


def filtered(network: Network, verb: str) -> None:
    """Packets to the data ports vanish (`-A`), or do so no more (`-D`)."""
    for name in network.names:
        network.inside(name, "iptables", "-w", verb, "INPUT", "-p", "tcp", "--dport", str(DATA_PORT), "-j", "DROP")


def other(site: NamespacedSite) -> dict[str, Any]:
    """What a site says of the only other one."""
    peers: list[dict[str, Any]] = site.get("/v1/peers") or []
    return next((peer for peer in peers if peer["is_live"]), {})


def told(site: NamespacedSite) -> str:
    """What a site says of the other, and of itself."""
    return f"{other(site)}\n{site.describe()}"


def rounds(site: NamespacedSite, other: NamespacedSite, number: int) -> list[float]:
    """Seconds of the exchanges of the next `number` rounds, less those in which a daemon stood still as a whole."""
    first = len(committed(site)) + 1

    def own_rounds() -> list[dict[str, Any]]:
        """Those that the site did not only hear of."""
        rows = [row for row in committed(site) if row["round"] >= first and row["times"]["exchange_s"] is not None]
        return rows if len(rows) >= number else []

    rows = wait_until(own_rounds, f"{number} rounds", PATIENCE_S, site.describe)
    return [exchange_s(row, site, other) for row in rows]


def exchange_s(row: dict[str, Any], *both: NamespacedSite) -> float:
    """Of one round."""
    seconds, begin = row["times"]["exchange_s"], row["started_at"] + row["times"]["gather_s"]
    return float(seconds - sum(stood_still_s(site, begin, begin + seconds) for site in both))


def test_filtered_data_port_costs_no_round_a_time_out_and_is_used_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DILOCOXD_NETWORK__DATA_PORT", str(DATA_PORT))
    with Network(f"fp{os.getpid() % 10000}", "ab") as network:
        filtered(network, "-A")
        members = founded(tmp_path, network)
        with sites(*members):
            for member in members:
                member.start_without_model(0.5)
            first = members[0]
            wait_entry_with(first, {peer_of(member) for member in members}, 0)

            def without_data() -> dict[str, Any]:
                """What is said of the other, once there is the reason why it has no data connection."""
                said = other(first)
                return said if "does not answer" in said.get("no_data_reason", "") else {}

            assert not wait_until(without_data, "a reason", PATIENCE_S)["has_data"]
            assert max(rounds(*members, 10)) < EXCHANGE_S_MAX
            filtered(network, "-D")
            wait_until(lambda: other(first).get("has_data"), "data connections", NEXT_TRY_S, lambda: told(first))
            assert max(rounds(*members, 3)) < EXCHANGE_S_MAX
