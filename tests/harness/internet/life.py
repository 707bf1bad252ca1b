"""A day of three real daemons over long links, in a minute: two found a run, one joins, one dies and comes back.

What it took, and whom anybody held to be gone who was not. Workers are the fake ones: links are looked at, not models.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.chaos.judge import read_events
from tests.harness.internet.conditions import Conditions
from tests.harness.internet.network import Internet
from tests.harness.running.network_namespaces import API_PORT, NamespacedSite, Network
from tests.harness.running.run_directories import printed_address, share_authority
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.strikes import now, stood_still_s

NAMES = "abc"
PATIENCE_S = 120.0
SUSPICIONS = ("peer.lost", "round.abandoned", "input.rejected", "fork.resolved")


@dataclass(frozen=True, slots=True)
class Life:
    """Seconds, and what was said of peers."""

    exchange_s: float
    """Median of gather's end to the commit: what links cost a round."""
    joined_s: float
    """From the start of the third to the commit of an entry with it."""
    killed_s: float
    """From SIGKILL of one to the next entry of the two others."""
    returned_s: float
    suspicions: tuple[str, ...]
    """Of peers that were there: until the kill anything, after it what does not name the dead. Not while a daemon had
    no CPU: that is no doing of the links."""
    exit_codes: tuple[int, ...]
    heads: tuple[str, ...]
    """Chain heads at one height at the end, of all sites."""


def founded(folder: Path, internet: Network, *settings: str, target: str = "tiny") -> list[NamespacedSite]:
    """Run directories of all sites of an internet, of a run of preset `target`; each knows the first."""
    members = [NamespacedSite(name, folder / name, API_PORT, network=internet) for name in internet.names]
    runner, address = CliRunner(), ""
    for member in members:
        extra = ["--set", f'network.bootstrap=["{address}"]'] if address else list(settings)
        origin = str(members[0].run_dir / "run.toml") if address else target
        result = runner.invoke(cli, ["init", origin, *member.options(), *extra], standalone_mode=False)
        assert result.exception is None, f"{result.exception}\n{result.output}"
        if address:
            share_authority(members[0].run_dir, member.run_dir)
        address = address or printed_address(result.output)
    return members


PARTS = ("exchange_s", "vote_s", "persist_s")
"""Of a round's times."""


def peer_of(site: NamespacedSite) -> str:
    """Its peer id, once it answers."""
    return str(wait_until(lambda: site.status().get("peer_id"), site.name, PATIENCE_S, site.describe))


def committed(site: NamespacedSite) -> list[dict[str, Any]]:
    """Rounds of the newest thousand that are in the chain, ascending."""
    return [row for row in site.rounds() if row["committed_at"]]


def wait_entry_with(site: NamespacedSite, peers: set[str], since: int) -> float:
    """Seconds until `site` has an entry from round `since` on that names all `peers`."""
    began = time.monotonic()

    def found() -> bool:
        return any(
            row["round"] >= since and {one["peer"] for one in row["contributors"]} >= peers for row in committed(site)
        )

    wait_until(found, f"an entry with {len(peers)} sites", PATIENCE_S, site.describe)
    return time.monotonic() - began


def wait_exchanges(site: NamespacedSite, since: int, number: int) -> list[float]:
    """So many exchanges that `site` took part in, votes and log included, seconds, ascending. An entry that it was
    given, because it was left out or the others finished it, has no such times."""

    def found() -> list[float]:
        times = [[row["times"][part] for part in PARTS] for row in committed(site) if row["round"] >= since]
        return sorted(sum(each) for each in times if None not in each)

    wait_until(lambda: len(found()) >= number, f"{number} exchanges", PATIENCE_S, site.describe)
    return found()


@contextmanager
def running(members: list[NamespacedSite], phase_s: float) -> Iterator[tuple[str, str]]:
    """Peer ids of the two founders, which have an entry together."""
    with sites(*members):
        for member in members[:2]:
            member.start_without_model(phase_s)
        first, second = peer_of(members[0]), peer_of(members[1])
        wait_entry_with(members[0], {first, second}, 0)
        yield first, second


def live(
    prefix: str,
    folder: Path,
    conditions: Conditions,
    phase_s: float,
    num_rounds: int = 3,
    progress_timeout_s: float = 5.0,
) -> Life:
    """One life over links of these conditions, with phases of `phase_s`."""
    with Internet(prefix, NAMES, conditions) as internet:
        members = founded(folder, internet, "--set", f"round.progress_timeout_s={progress_timeout_s}")
        with running(members, phase_s) as (first, second):
            return _lived(members, (first, second), phase_s, num_rounds)


def _lived(members: list[NamespacedSite], founders: tuple[str, str], phase_s: float, num_rounds: int) -> Life:
    keeper, victim, late = members
    late.start_without_model(phase_s)
    third = peer_of(late)
    everybody = {*founders, third}
    joined_s = wait_entry_with(keeper, everybody, 0)
    height = keeper.status()["height"]
    exchanges = wait_exchanges(keeper, height, num_rounds)
    begun = now()

    victim.kill_tree()
    killed_s = wait_entry_with(keeper, {founders[0], third}, keeper.status()["height"])
    victim.start_without_model(phase_s)
    returned_s = wait_entry_with(keeper, everybody, keeper.status()["height"])
    said = [text for member in members for text in _said(member, members, until=begun)]
    since = [text for member in (keeper, late) for text in _said(member, members, since=begun)]
    said += [text for text in since if founders[1] not in text]
    heads = _heads(members)
    codes = tuple(member.stop(60) for member in members)
    return Life(exchanges[len(exchanges) // 2], joined_s, killed_s, returned_s, tuple(said), codes, heads)


def _said(
    site: NamespacedSite, members: list[NamespacedSite], since: float = 0.0, until: float = math.inf
) -> list[str]:
    """What a site said of others, one line each."""
    return [
        f"{site.name}: {one['event']} {one.get('peer', '')} {one.get('reason', one.get('detail', ''))}"
        for one in read_events(site.run_dir)
        if one["event"] in SUSPICIONS and since <= one["time"] < until and not _is_of_the_machine(one, members)
    ]


def _is_of_the_machine(said: dict[str, Any], members: list[NamespacedSite]) -> bool:
    """Whether a daemon stood still as a whole in the time that was waited for somebody."""
    began = said["time"] - said.get("silent_s", said.get("waited_s", 0.0))
    return any(stood_still_s(member, began, said["time"]) for member in members)


def _heads(members: list[NamespacedSite]) -> tuple[str, ...]:
    """The hash that each site has of the newest entry that all of them have."""

    def found() -> tuple[str, ...]:
        rows = [
            {row["round"]: row["entry_hash"] for row in committed(member) if row["entry_hash"]} for member in members
        ]
        common = set.intersection(*(set(one) for one in rows))
        return tuple(one[max(common)] for one in rows) if common else ()

    heads: tuple[str, ...] = wait_until(found, "an entry that all have", PATIENCE_S)
    return heads
