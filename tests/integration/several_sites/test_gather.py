"""Three real daemons with `reduction.reducer = gather`: everybody sums for itself, and holds the same bits (X11)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.machines.exchange.cost import bytes_each_way
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import PATIENCE_S, founder_options, log_of, site_options, write_corpus

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {"reduction.reducer": "gather", "strategy.codec": "topk", "round.grace_min_s": "20.0"}


def start(site: SiteProcess) -> None:
    site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])


def test_sites_that_all_sum_for_themselves_commit_the_same_entries(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    options = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    first = found_run(tmp_path, "first", *founder_options(tmp_path, inner_steps=50), *options)
    with sites(first):
        start(first)
        first.wait_height(1, PATIENCE_S)
        others = [join_run(tmp_path, name, first, *site_options(tmp_path)) for name in ("second", "third")]
        with sites(*others):
            for site in others:
                start(site)
            everybody = (first, *others)

            def plain_rounds() -> list[dict[str, Any]]:
                """Of all three at the first attempt: another one sends what the first had sent once more."""
                rows = [row for row in first.rounds() if len(row["contributors"]) == 3 and row["attempts"] == 1]
                return rows if len(rows) >= 3 else []

            rows = wait_until(
                plain_rounds,
                "three rounds of all three",
                PATIENCE_S,
                lambda: "\n".join(site.describe() for site in everybody),
            )
            assert [site.stop() for site in (*others, first)] == [0, 0, 0]
    log = log_of(first)
    for row in rows:
        sent = bytes_each_way(log.payload(row["round"]).length, 3, is_gathered=True)
        assert (row["bytes_sent"], row["bytes_received"]) == (sent, sent)
    chains = [{signed.entry.round: signed.entry for signed in log_of(site).entries()} for site in everybody]
    shared = set.intersection(*(set(chain) for chain in chains))
    common = [index for index in sorted(shared) if len(chains[0][index].contributions) == 3]
    assert common
    assert all(chains[0][index] == chain[index] for chain in chains for index in common)
