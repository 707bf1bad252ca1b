"""Two real sites on loopback whose exchange takes a chosen share of a phase, because their upload is limited.

For tests.bench.overlap and tests.bench.slowdown. The phase time comes from an unlimited run on the same machine first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import write_corpus
from tests.harness.running.twin_run_directories import make_pair

PATIENCE_S = 180.0
BURST_BYTES = 1 << 20
"""What dilocoxd/swarm/streams/throttle.py lets through at once."""
HIDDEN_SIZE = 256


def model_of(hidden_size: int) -> dict[str, int]:
    """2.6 million parameters at HIDDEN_SIZE, and about a fourth of them for half of it."""
    return {
        "vocab_size": 512, "hidden_size": hidden_size, "num_layers": 3, "num_heads": 4, "num_kv_heads": 4,
        "intermediate_size": hidden_size * 11 // 4, "seq_len": 32,
    }  # fmt: skip


def add_hidden_size(parser: argparse.ArgumentParser) -> None:
    """The option that makes the model smaller."""
    parser.add_argument("--hidden-size", type=int, default=HIDDEN_SIZE, help="Of the model.")


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    delay: str
    inner_steps: int = 40
    upload_bytes_per_s: int = 0
    command: Callable[[SiteProcess], list[str]] | None = None
    """How to start a site; None: `dilocoxd run`."""
    hidden_size: int = HIDDEN_SIZE
    codec: str = "fp32"


def options_of(folder: Path, setting: Setting) -> tuple[list[str], list[str]]:
    """Options of the founder's `init`, and those of both sites."""
    corpus = folder / "corpus"
    settings: dict[str, object] = {
        "data.corpus": f'"{corpus if corpus.is_dir() else write_corpus(folder)}"',
        "data.validation_sequences": 2,
        "data.evaluate_every_rounds": 0,
        "inner.batch_sequences": 2,
        "inner.microbatches": 1,
        "strategy.inner_steps": setting.inner_steps,
        "strategy.extend_steps_max": 20 * setting.inner_steps,
        "strategy.delay": setting.delay,
        "strategy.codec": setting.codec,
        "strategy.segment_elements_max": 65536,
        "round.grace_min_s": 2.0,
        "round.grace_max_s": 30.0,
        "round.progress_timeout_s": 10.0,
        "snapshot.every_rounds": 4,
    }
    settings |= {f"model.{name}": value for name, value in model_of(setting.hidden_size).items()}
    manifest = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    limit = ["--set", f"network.upload_bytes_per_s_max={setting.upload_bytes_per_s}"]
    return manifest, ["--cache", str(folder / "cache"), *limit]


def pid_of(site: SiteProcess, worker: str) -> list[int]:
    """Process ids of one kind of worker."""
    found = site.status()["workers"][worker]
    return list(found["pids"]) if worker == "trainer" else [found["pid"]]


class Pair:
    """Two running sites; `window` remembers where the measured rounds begin."""

    def __init__(self, members: tuple[SiteProcess, SiteProcess], setting: Setting) -> None:
        self.members = members
        self.setting = setting
        self._totals: dict[str, dict[str, Any]] = {}
        self.started_at = 0.0
        self.first_round = 0

    def warm_up(self, rounds: int = 3) -> None:
        """Until both have met and their first rounds, which are no measure of anything, are over."""
        for site in self.members:
            site.wait_height(rounds, PATIENCE_S)
        wait_until(lambda: self._is_joint(), "a joint round", PATIENCE_S, self.members[0].describe)
        self._totals = {site.name: site.status()["totals"] for site in self.members}
        self.started_at = time.time()
        self.first_round = max(site.status()["height"] for site in self.members) + 1

    def _is_joint(self) -> bool:
        rows = self.members[0].rounds()
        done = [row for row in rows if row["applied_at"]]
        return bool(done) and len(done[-1]["contributors"]) == len(self.members)

    def train(self, rounds: int, limit_s: float) -> None:
        """Let them train for so many more rounds, or so long."""
        deadline = time.monotonic() + limit_s
        while min(site.status().get("height", 0) for site in self.members) < self.first_round + rounds:
            if time.monotonic() > deadline:
                return
            time.sleep(0.5)

    def rows(self, site: SiteProcess) -> list[dict[str, Any]]:
        """Rounds that both contributed to and that began after the warm-up."""
        rows = site.get(f"/v1/rounds?from={self.first_round}&limit=1000") or []
        return [row for row in rows if row["applied_at"] and row["is_contributor"]]

    def figures(self, site: SiteProcess) -> dict[str, Any]:
        """What one site's API says about the time since the warm-up."""
        now, before = site.status()["totals"], self._totals[site.name]
        wall = time.time() - self.started_at
        steps = now["inner_steps"] - before["inner_steps"]
        train_s, idle_s = now["train_s"] - before["train_s"], now["idle_s"] - before["idle_s"]
        step_s = train_s / max(1, steps)
        me = site.status()["peer_id"]
        rows = self.rows(site)
        own = [c["inner_steps"] for row in rows for c in row["contributors"] if c["peer"] == me]
        phase_s = step_s * self.setting.inner_steps
        exchange = [row["times"]["exchange_s"] for row in rows]
        whole = [row["applied_at"] - row["started_at"] for row in rows]
        return {
            "site": site.name,
            "rounds": len(rows),
            "joint_rounds": sum(len(row["contributors"]) == len(self.members) for row in rows),
            "wall_s": round(wall, 1),
            "idle_s": round(idle_s, 3),
            "idle_share": round(idle_s / wall, 5),
            "busy_share": round(train_s / wall, 4),
            "step_ms": round(1e3 * step_s, 1),
            "phase_s": round(phase_s, 2),
            "exchange_s": round(statistics.median(exchange), 2) if exchange else None,
            "exchange_to_phase": round(statistics.median(exchange) / phase_s, 3) if exchange else None,
            "exchange_to_phase_max": round(max(exchange) / phase_s, 3) if exchange else None,
            "round_to_phase": round(statistics.median(whole) / phase_s, 3) if whole else None,
            "extended_steps": sum(max(0, count - self.setting.inner_steps) for count in own),
            "own_steps": sum(own),
            "bytes_sent_per_round": round(statistics.median(row["bytes_sent"] or 0 for row in rows)) if rows else None,
            "attempts_failed": now["attempts_failed"] - before["attempts_failed"],
            "failures": [reason for row in rows for reason in row["failures"]][:3],
        }


def run_pair(folder: Path, setting: Setting, use: Callable[[Pair], Any]) -> Any:
    """Start two sites, warm them up, and return what `use` makes of them."""
    folder.mkdir(parents=True, exist_ok=True)
    members = make_pair(folder, "tiny", *options_of(folder, setting))
    with sites(*members):
        for site in members:
            if setting.command is None:
                site.start()
            else:
                site.start_command(setting.command(site))
        pair = Pair(members, setting)
        pair.warm_up()
        return use(pair)


def limit_for(ratio: float, phase_s: float, payload_bytes: int) -> int:
    """Upload limit with which sending `payload_bytes` takes `ratio` of a phase (the bucket starts full)."""
    return max(1, round(max(payload_bytes - BURST_BYTES, payload_bytes // 4) / (ratio * phase_s)))
