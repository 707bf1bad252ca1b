"""What a peer that dies in an exchange costs the others: `python -m tests.bench.survivors [--kills 2]`.

Three sites (real daemons, p2pd, outer workers, log; trainers without a model) in network namespaces, upload limited so
that an exchange takes about a third of a phase. In the middle of an exchange one site loses all its processes: the
coordinator or another one; *killed* (its kernel still answers: connections break at once), *vanished* (its packets
stop first: only time-outs tell) or *frozen* (SIGSTOP: its kernel answers for ever). Prints one JSON object for each:
`next_s`: from there to the first entry that the survivors make and apply, `rejoin_s`: from its start to the next
entry that it is in; detection (kill to the first attempt given up by a
survivor), retry (from there to the commit of that round), idle seconds of the survivors' trainers until then, steps by
which their phases were extended. Target: idle 0 while detection + retry fits in a phase. Needs root and iptables.

`--calm-s S`: before that, S seconds in which nobody dies, and what the sites took for a death meanwhile; `--rtt-ms`
and `--loss` (percent): links of user space; `--load`: processes that do nothing but compute; `--mbit`: thin links in
place of limited uploads, with what a router queues (below 20 Mbit/s once the sites have met), and time-outs of 20 s.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.bench import end_when_told
from tests.bench.paced import HIDDEN_SIZE, limit_for, model_of
from tests.chaos.judge import read_events
from tests.harness.internet.conditions import rtt
from tests.harness.internet.network import Internet
from tests.harness.running.network_namespaces import API_PORT, NamespacedSite, Network
from tests.harness.running.run_directories import printed_address, share_authority
from tests.harness.running.sites import sites, wait_until
from tests.harness.synthetic.trainer import STEP_S_VARIABLE

NAMES = "abc"
PATIENCE_S = 240.0
PAYLOAD_BYTES = 10_700_000
"""fp32 contribution of the model; each site sends about as much in a round of three (own shares and results)."""
EXCHANGE_SHARE = 0.3
MEET_MBIT = 20.0
"""Sites meet on links as fast as this: connections that have learned what an unlimited link carries fill its queue."""
EXCHANGES_KEPT = 5
"""Of which the median is taken."""


def make_sites(folder: Path, network: Network, steps: int, upload_bytes_per_s: int) -> list[NamespacedSite]:
    """Run directories that know the first site. 0 bytes per second: no limit."""
    settings: dict[str, object] = {
        "data.evaluate_every_rounds": 0,
        "strategy.inner_steps": steps,
        "strategy.extend_steps_max": 100 * steps,
        "strategy.codec": "fp32",
        "strategy.segment_elements_max": 65536,
        "round.grace_min_s": 2.0,
        "round.progress_timeout_s": 5.0 if upload_bytes_per_s else 20.0,
        "snapshot.every_rounds": 4,
    }
    settings |= {f"model.{name}": value for name, value in model_of(HIDDEN_SIZE).items()}
    manifest = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    common = ["--cache", str(folder / "cache"), "--set", f"network.upload_bytes_per_s_max={upload_bytes_per_s}"]
    members, address = [], ""
    for name in NAMES:
        member = NamespacedSite(name, folder / name, API_PORT, network=network)
        extra = ["--set", f'network.bootstrap=["{address}"]'] if address else manifest
        target = str(members[0].run_dir / "run.toml") if members else "tiny"
        result = CliRunner().invoke(cli, ["init", target, *member.options(), *common, *extra], standalone_mode=False)
        if result.exception is not None:
            raise AssertionError(f"{result.exception}\n{result.output}")
        if members:
            share_authority(members[0].run_dir, member.run_dir)
        address = address or printed_address(result.output)
        members.append(member)
    return members


def start(member: NamespacedSite) -> None:
    member.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(member.run_dir)])


def wait_joint(members: list[NamespacedSite], rounds: int = 2) -> None:
    """Until the newest rounds name everybody, as everybody says."""

    def is_joint() -> bool:
        newest = [m.rounds() for m in members]
        done = [[row for row in rows if row["applied_at"] and row["attempts"]][-rounds:] for rows in newest]
        return all(len(rows) == rounds and all(len(r["contributors"]) == len(members) for r in rows) for rows in done)

    wait_until(is_joint, "joint rounds", PATIENCE_S, lambda: "\n".join(m.describe() for m in members))


def phase_seconds(site: NamespacedSite) -> float:
    """Median time from one joint round to the next."""
    rows = [r for r in site.rounds() if r["applied_at"] and r["attempts"]]
    times = [
        b["applied_at"] - a["applied_at"]
        for a, b in itertools.pairwise(rows)
        if len(a["contributors"]) == len(b["contributors"]) == len(NAMES)
    ]
    return statistics.median(times[-EXCHANGES_KEPT:]) if times else 0.0


def exchange_seconds(site: NamespacedSite) -> float:
    """Median length of the newest joint exchanges."""
    rows = [r for r in site.rounds() if r["applied_at"] and r["attempts"]]
    times = [r["times"]["exchange_s"] for r in rows if len(r["contributors"]) == len(NAMES)]
    return statistics.median(times[-EXCHANGES_KEPT:]) if times else 0.0


def wait_exchange(members: list[NamespacedSite]) -> dict[str, Any]:
    """Status of `round` at the moment when an exchange of all has begun."""
    deadline = time.monotonic() + PATIENCE_S
    is_over = False  # the exchange that runs when we begin to look may be nearly over
    while time.monotonic() < deadline:
        round_ = members[0].status().get("round") or {}
        is_exchanging = round_.get("state") == "exchanging" and len(round_.get("group") or []) == len(members)
        if not is_exchanging:
            is_over = True
        elif is_over:
            return dict(round_)
        time.sleep(0.005)
    raise AssertionError(f"no exchange of all\n{members[0].describe()}")


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def next_applied(survivors: list[NamespacedSite], since: float) -> float:
    """When all of them had an entry that was made after this moment."""
    return max(min(r["applied_at"] for r in m.rounds() if (r["applied_at"] or 0) > since) for m in survivors)


def wait_entry_with(site: NamespacedSite, peer: str, since: float) -> float:
    """When this site had the first entry after this moment that has a contribution of the peer."""

    def applied() -> list[float]:
        rows = [r for r in site.rounds() if (r["applied_at"] or 0) > since]
        return [r["applied_at"] for r in rows if peer in {c["peer"] for c in r["contributors"]}]

    wait_until(applied, "an entry with it", PATIENCE_S, site.describe)
    return min(applied())


def kill_once(network: Network, members: list[NamespacedSite], *, role: str, mode: str) -> dict[str, Any]:
    """One death and what it cost."""
    peers = {str(m.status().get("peer_id")): m for m in members}
    exchange_s, phase_s = exchange_seconds(members[0]), phase_seconds(members[0])
    pids = {m.name: network.pids(m.name) for m in members}
    round_ = wait_exchange(members)
    time.sleep(exchange_s / 2)
    coordinator = peers[round_["coordinator"]]
    victim = coordinator if role == "coordinator" else next(m for m in members[::-1] if m is not coordinator)
    survivors = [m for m in members if m is not victim]
    before = {m.name: m.status()["totals"] for m in survivors}
    if mode == "vanished":
        network.cut(victim.name)
    killed_at = time.time()
    signal_all(pids[victim.name], signal.SIGSTOP if mode == "frozen" else signal.SIGKILL)
    index = int(round_["round"])
    for m in survivors:
        m.wait_height(index + 1, PATIENCE_S)
    committed_at = time.time()
    idle = {m.name: round(m.status()["totals"]["idle_s"] - before[m.name]["idle_s"], 3) for m in survivors}
    found = [(r["time"], r["event"], r) for m in survivors for r in read_events(m.run_dir) if r["time"] >= killed_at]
    given_up = [at for at, kind, r in found if kind == "round.abandoned" and r["round"] == index]
    lost = [at for at, kind, r in found if kind == "peer.lost" and peers[r["peer"]] is victim]
    extended = sum(r["inner_steps"] for at, kind, r in found if kind == "phase.extended" and at <= committed_at)
    network.heal(victim.name)
    if mode == "frozen":
        signal_all(pids[victim.name], signal.SIGKILL)
    assert victim.process is not None
    victim.process.wait(20)
    started_at = time.time()
    start(victim)
    rejoined_at = wait_entry_with(survivors[0], next(peer for peer, m in peers.items() if m is victim), started_at)
    wait_joint(members)
    return {
        "role": role,
        "mode": mode,
        "phase_s": round(phase_s, 2),
        "exchange_s": round(exchange_s, 2),
        "was_in_time": not given_up,
        "detection_s": round(min(given_up) - killed_at, 2) if given_up else None,
        "peer_lost_after_s": round(min(lost) - killed_at, 2) if lost else None,
        "by_all_after_s": round(max(lost) - killed_at, 2) if len(lost) == len(survivors) else None,
        "next_s": round(next_applied(survivors, killed_at) - killed_at, 2),
        "rejoin_s": round(rejoined_at - started_at, 2),
        "detection_and_retry_s": round(committed_at - killed_at, 2),
        "idle_s": idle,
        "extended_steps": extended,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def calm(members: list[NamespacedSite], seconds: float) -> dict[str, Any]:
    """What is seen in this time, in which nobody dies."""
    since = time.time()
    time.sleep(seconds)
    found = [r for m in members for r in read_events(m.run_dir) if r["time"] >= since]
    lost, given_up = ([r for r in found if r["event"] == kind] for kind in ("peer.lost", "round.abandoned"))
    rows = [r for r in members[0].rounds() if (r["applied_at"] or 0) > since]
    return {
        "calm_s": seconds,
        "rounds": len(rows),
        "of_all": sum(len(r["contributors"]) == len(members) for r in rows),
        "exchange_s": round(exchange_seconds(members[0]), 2),
        "peers_lost": len(lost),
        "lost_at_s": [round(r["time"] - since) for r in lost],
        "why": dict(Counter(r["reason"] for r in lost)),
        "attempts_given_up": len(given_up),
        "why_given_up": dict(Counter(r["reason"] for r in given_up)),
        "load_1min": round(os.getloadavg()[0], 1),
    }


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that compute."""
    running = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2, help="of each role and mode")
    parser.add_argument("--roles", default="coordinator,member")
    parser.add_argument("--modes", default="killed,vanished,frozen")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.15)
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0, help="percent; with --rtt-ms")
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--mbit", type=float, default=0.0, help="of each link, each way; 0: uploads are limited")
    parser.add_argument("--calm-s", type=float, default=0.0)
    arguments = parser.parse_args()
    prefix, rtt_s = f"ch{os.getpid() % 10000}su", arguments.rtt_ms / 1000
    made = Internet(prefix, NAMES, rtt(rtt_s, arguments.loss / 100)) if rtt_s else Network(prefix, NAMES)
    end_when_told()
    with (
        tempfile.TemporaryDirectory(prefix="dilocoxd-survivors-") as name,
        made as network,
    ):
        limit = limit_for(EXCHANGE_SHARE, arguments.steps * arguments.step_s, PAYLOAD_BYTES)
        members = make_sites(Path(name), network, arguments.steps, 0 if arguments.mbit else limit)
        with sites(*members):
            is_thin = 0 < arguments.mbit < MEET_MBIT
            for one in NAMES if arguments.mbit and not is_thin else "":
                network.shape(one, arguments.mbit)
            for member in members:
                member.environment[STEP_S_VARIABLE] = str(arguments.step_s)
                start(member)
            wait_joint(members, 3)
            for one in NAMES if is_thin else "":
                network.shape(one, arguments.mbit)
            if is_thin:  # exchanges of before say nothing of these links
                members[0].wait_height(int(members[0].status()["height"]) + EXCHANGES_KEPT, PATIENCE_S)
            with busy(arguments.load):
                if arguments.calm_s:
                    print(json.dumps(calm(members, arguments.calm_s)), flush=True)
                for role, mode in itertools.product(arguments.roles.split(","), arguments.modes.split(",")):
                    for _ in range(arguments.kills):
                        print(json.dumps(kill_once(network, members, role=role, mode=mode)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
