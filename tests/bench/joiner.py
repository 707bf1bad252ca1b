"""A newcomer in a running swarm with slow links: `python -m tests.bench.joiner [--model 10m] [--mbit 50] [--joins 3]`.

Three sites (real daemons, p2pd, outer workers, log, snapshots; trainers without a model) in network namespaces, links
shaped with tbf. A fourth joins so late that it needs a snapshot, contributes, leaves and loses its disk, several times.
Prints, for each join, the time from `dilocoxd run` to its first committed contribution in phases (rounds of the others
before), and at the end how long rounds took while the others served, against rounds before (target: at
most 1.1). Needs root, ip and tc.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.machines.recovery.interface.limits import RecoveryLimits
from tests.bench import end_when_told
from tests.bench.memory import manifest_options
from tests.chaos.judge import read_events
from tests.harness.running.network_namespaces import API_PORT, NamespacedSite, Network
from tests.harness.running.run_directories import OPEN, printed_address
from tests.harness.running.sites import sites, wait_until
from tests.harness.synthetic.trainer import STEP_S_VARIABLE

FOUNDERS, JOINER = "abc", "d"
PATIENCE_S = 300.0
BASELINE_ROUNDS = 6
DAEMON = (sys.executable, "-m", "tests.harness.synthetic.daemon")


def make_sites(folder: Path, network: Network, options: list[str]) -> list[NamespacedSite]:
    """Run directories of the founders, and a template of the joiner's."""
    members = [NamespacedSite(name, folder / name, API_PORT, network=network) for name in FOUNDERS + JOINER]
    address = ""
    for member in members:
        extra = ["--set", f'network.bootstrap=["{address}"]'] if address else [*options, *OPEN]
        target = str(members[0].run_dir / "run.toml") if address else "tiny"
        words = ["init", target, *member.options(), "--cache", str(folder / "cache"), *extra]
        result = CliRunner().invoke(cli, words, standalone_mode=False)
        if result.exception is not None:
            raise AssertionError(f"{result.exception}\n{result.output}")
        address = address or printed_address(result.output)
    members[-1].run_dir.rename(folder / "template")
    return members


def start(member: NamespacedSite, step_s: float) -> None:
    member.environment[STEP_S_VARIABLE] = str(step_s)
    member.start_command([*DAEMON, str(member.run_dir)])


def rounds_of(site: NamespacedSite) -> list[dict[str, Any]]:
    """Applied rounds that the site lived through."""
    return [r for r in site.rounds() if r["applied_at"] and r["attempts"]]


def spacing(rows: list[dict[str, Any]]) -> list[float]:
    """Seconds from one applied round to the next: what a round costs, gathering and training included."""
    return [after["applied_at"] - before["applied_at"] for before, after in itertools.pairwise(rows)]


def calm(site: NamespacedSite, joiner_peer: str) -> list[float]:
    """Spacing of the newest rounds without the joiner, once there are enough of them."""

    def found() -> list[float]:
        rows = rounds_of(site)
        newest = rows[-(BASELINE_ROUNDS + 1) :]
        is_alone = all(len(r["contributors"]) == len(FOUNDERS) for r in newest)
        has_joiner = any(c["peer"] == joiner_peer for r in newest for c in r["contributors"])
        return spacing(newest) if len(newest) > BASELINE_ROUNDS and is_alone and not has_joiner else []

    times: list[float] = wait_until(found, "calm rounds", PATIENCE_S, site.describe)
    return times


def join_once(members: list[NamespacedSite], folder: Path, step_s: float) -> dict[str, Any]:
    """One newcomer, from an empty disk to its first contribution."""
    first, joiner = members[0], members[-1]
    before = calm(first, "")
    shutil.copytree(folder / "template", joiner.run_dir)
    (joiner.run_dir / "identity.key").unlink()
    started = time.time()
    start(joiner, step_s)
    peer = str(wait_until(lambda: joiner.status().get("peer_id"), "an answer", PATIENCE_S, joiner.describe))

    def entry() -> dict[str, Any] | None:
        return next((r for r in rounds_of(first) if any(c["peer"] == peer for c in r["contributors"])), None)

    first_in = wait_until(entry, "its first contribution", PATIENCE_S, joiner.describe)
    events = read_events(joiner.run_dir)
    began = next(r["time"] for r in events if r["event"] == "recovery.started")
    done = next(r for r in events if r["event"] == "recovery.finished")
    phase_s = statistics.median(before)
    rows = rounds_of(first)
    during = [
        round(after["applied_at"] - earlier["applied_at"], 2)
        for earlier, after in itertools.pairwise(rows)
        if earlier["applied_at"] < done["time"] and after["applied_at"] > began
    ]
    joiner.stop(40)
    shutil.rmtree(joiner.run_dir)
    return {
        "phase_s": round(phase_s, 2),
        "phases_to_first_contribution": round((first_in["committed_at"] - started) / phase_s, 2),
        "seconds_to_first_contribution": round(first_in["committed_at"] - started, 1),
        "recovery_s": round(done["recovery_s"], 2),
        "recovered_mb": round(done["bytes_received"] / 1e6, 1),
        "rounds_before_s": [round(value, 2) for value in before],
        "rounds_while_serving_s": during,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="10m")
    parser.add_argument("--mbit", type=float, default=50.0)
    parser.add_argument("--joins", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.05)
    arguments = parser.parse_args()
    end_when_told()
    options = manifest_options(arguments.model, snapshot_every=4, delay="arrival", segment_elements_max=1 << 18)
    options += ["--set", f"strategy.inner_steps={arguments.steps}", "--set", "snapshot.keep=3"]
    options += ["--set", "round.grace_min_s=3", "--set", "round.grace_max_s=20", "--set", "round.progress_timeout_s=10"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="dilocoxd-joiner-") as name:
        folder = Path(name)
        with Network(f"ch{os.getpid() % 10000}jo", FOUNDERS + JOINER) as network:
            members = make_sites(folder, network, options)
            for member in FOUNDERS + JOINER:
                network.shape(member, arguments.mbit)
            with sites(*members):
                for member in members[:-1]:
                    start(member, arguments.step_s)
                for member in members[:-1]:
                    member.wait_height(RecoveryLimits().replay_max + 2, PATIENCE_S)
                for _ in range(arguments.joins):
                    rows.append(join_once(members, folder, arguments.step_s))
                    print(json.dumps(rows[-1]), flush=True)
    before = statistics.mean(value for row in rows for value in row["rounds_before_s"])
    during = statistics.mean(value for row in rows for value in row["rounds_while_serving_s"])
    phases = statistics.median(row["phases_to_first_contribution"] for row in rows)
    summary = {"round_s_before": round(before, 2), "round_s_while_serving": round(during, 2)}
    print(json.dumps(summary | {"ratio": round(during / before, 3), "phases_to_first_contribution": phases}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
