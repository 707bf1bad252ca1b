"""A network that splits and heals, with real cuts between namespaces: with a majority quorum the minority waits."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.chaos.judge import dilocoxd_json, read_events
from tests.harness.running.network_namespaces import API_PORT, NamespacedSite, Network
from tests.harness.running.run_directories import printed_address, share_authority
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.training import PATIENCE_S

NAMES = "abcd"

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with Network(f"ch{os.getpid() % 10000}{request.node.name[5:7]}", NAMES) as made:
        yield made


def run_dirs(folder: Path, network: Network, founder: list[str], *everybody: str) -> list[NamespacedSite]:
    """Sites of one run that all know the first; made by `dilocoxd init`."""
    members = [NamespacedSite(name, folder / name, API_PORT, network=network) for name in network.names]
    runner, address = CliRunner(), ""
    for member in members:
        extra = ["--set", f'network.bootstrap=["{address}"]'] if address else founder
        target = str(members[0].run_dir / "run.toml") if address else "tiny"
        result = runner.invoke(cli, ["init", target, *member.options(), *everybody, *extra], standalone_mode=False)
        assert result.exception is None, f"{result.exception}\n{result.output}"
        if address:
            share_authority(members[0].run_dir, member.run_dir)
        address = address or printed_address(result.output)
    return members


def contributors(row: dict[str, Any]) -> set[str]:
    return {c["peer"] for c in row["contributors"]}


def rows_of(site: NamespacedSite) -> list[dict[str, Any]]:
    rows = site.rounds()
    return [row for row in rows if row["committed_at"]]


def wait_entry(site: NamespacedSite, peers: set[str], *, since: int = 0) -> int:
    """Round of the first entry from `since` on that names exactly or more than these peers."""

    def found() -> list[int]:
        return [row["round"] + 1 for row in rows_of(site) if row["round"] >= since and contributors(row) >= peers]

    return int(min(wait_until(found, f"an entry of {len(peers)} sites", PATIENCE_S, site.describe))) - 1


def peer_of(site: NamespacedSite) -> str:
    return str(wait_until(lambda: site.status().get("peer_id"), site.name, PATIENCE_S, site.describe))


def test_minority_waits_with_a_reason_and_catches_up_by_entries_alone(tmp_path: Path, network: Network) -> None:
    members = run_dirs(tmp_path, network, ["--set", "round.quorum=majority"])
    alone = members[3]
    with sites(*members):
        for member in members:
            member.start_without_model()
        peers = [peer_of(member) for member in members]
        wait_entry(members[0], set(peers))
        network.cut(alone.name)
        height = max(member.says("height") for member in members)  # one of them may be behind
        members[0].wait_height(height + 5, PATIENCE_S)

        def reason() -> str:
            return str((alone.status().get("round") or {}).get("waiting_for"))

        wait_until(lambda: "majority" in reason() or "more than half" in reason(), "a reason", PATIENCE_S, reason)
        stuck = alone.says("height")
        assert stuck <= height + 1, "only what was voted for before the cut may still come"
        members[0].wait_height(height + 8, PATIENCE_S)
        assert alone.says("height") == stuck
        network.heal(alone.name)
        joint = wait_entry(members[0], set(peers), since=height + 8)
        alone.wait_height(joint + 1, PATIENCE_S)
        assert [member.stop() for member in members] == [0, 0, 0, 0]
    chain = dilocoxd_json("log", "show", str(alone.run_dir), "--last", "0")
    assert len(chain) > height + 8
    assert all(row["payload_bytes"] is not None for row in chain), f"entries were skipped: {json.dumps(chain)[:500]}"
    events = read_events(alone.run_dir)
    assert any(record["event"] == "recovery.finished" and record["height"] > stuck for record in events)
    assert not any(record["event"] == "fork.resolved" for record in events)
