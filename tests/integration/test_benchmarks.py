"""Every benchmark still runs: each once, for the shortest stretch that goes through all of it. Its figures say nothing.

A benchmark that nothing runs rots with the next change of what it measures.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.running.sites import ROOT
from tests.harness.running.warm import WARM_VARIABLE, fork_ordered
from tests.integration import warm_benchmark
from tests.integration.warm_benchmark import FOUND_VARIABLE

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1000)]

LIMIT_S = 900.0
OF_STARTS = ("launches", "restarts.again", "restarts.startup")
"""Cold, as by hand; the others, and their daemons, are forks of a process that is loaded (warm_benchmark.py)."""
SHORTEST = {
    "api_load": "--blocks 1 --block-s 1 --steps 4 --phase-s 2 --hidden-size 128 --payload 2900000",
    "catch_up": "--mib 2 --mbit 400 --repetitions 1",
    "compression": "--elements 65536 --repetitions 1",
    "compression_memory": "--elements 65536",
    "convergence": "--preset default --seeds 1 --tokens 16384 --task toy --json {folder}/convergence.json",
    "convergence.liars": "--once --rounds 2 --task toy --json {folder}/liars.json",
    "data": "--mib 1 --gib 0.1 --samples 64 --presets tiny --steps 1",
    "links.fixed_cost": "--sites 2 --rtts-ms 20 --connections 8 --rounds 1",
    "links.whole_rounds": "--sites 2 --rtts-ms 20 --rounds 1 --inner-steps 5 --step-s 0.05",
    "links.added_delay": "--mbits 50 --rtts-ms 20 --mib 16",
    "links.byte_cost": "--mib 4 --segments-kib 1024 --repetitions 1",
    "links.data_plane": "--mbits 200 --rtts-ms 20 --mibs 16 --segments-kib 1024 --p2pd-mib 4 --repetitions 1",
    "links.predicted": "--mbits 400 --rtts-ms 20 --rounds 1 --hidden-size 32 --step-s 0.05",
    "headline": "--sites 2 --ratios 2 --legs default --hidden-size 32 --batch-sequences 1 --step-s 0.05 --rounds 1"
    " --own-inner-steps 10 --leg-s 5 --ddp-steps 2 --ddp-s 1 --json {folder}/headline.json --plot {folder}/h.png",
    "joiner": "--model tiny --mbit 400 --joins 1 --steps 10 --step-s 0.02",
    "launches": "1",
    "long_links": "--rtts-ms 20 --rounds 0 --mib 16",
    "machines.exchange": "--segments 40 --repetitions 1",
    "memory": "--model tiny --rounds 1 --segment-elements-max 65536",
    "models.compiled": "--once --here small float32",
    "models.layouts": "--steps 1 --blocks 1",
    "models.logits": "--once",
    "models.parts": "--once",
    "outer.niceness": "--nices 5 --blocks 1 --rounds 2 --inner-steps 4 --hidden-size 128",
    "outer.step": "--model tiny --rounds 2",
    "outer_parts": "--model tiny --rounds 1 --segment-elements-max 4096",
    "outer_memory": "--model tiny --rounds 1 --segment-elements-max 65536",
    "overlap": "--ratios 0.2 --delays arrival --rounds 1 --inner-steps 4 --hidden-size 128",
    "restarts.again": "1",
    "restarts.generations": "1",
    "restarts.node_flap": "--times 1 --seconds 6 --small",
    "restarts.node_loss": "--times 1 --ways killed",
    "restarts.startup": "1",
    "page": "exchange-machine --anyway --results {folder}",
    "peers": "--mib 1 --rounds 1 --mbit 400 --patience-s 20",  # on a busy machine hivemind's have none in minutes
    "slowdown": "--phase-s 2 --blocks 2 --rounds 1 --inner-steps 4 --hidden-size 128 --payload 2900000",
    "survivors": "--kills 1 --roles coordinator --modes killed --steps 5 --step-s 0.4",
    "trainer": "--preset tiny --steps-max 1 --timed-steps 1 --timed 2x2",
    "links.transport": "1 1",
    "trust.cost": "--sites 2 --rounds 2 --phase-s 0.5 --elements 65536 --repetitions 1",
    "trust": "--garbage 20 --keys 1 --frames 4 --phase-s 0.5 --quiet-s 1",
}
"""Benchmark -> options of its shortest run."""
PARTS = {
    *("headline.rank", "headline.site", "links.watched_site", "page.row", "peers.peer"),
    *("restarts.elastic", "restarts.rank"),
}
"""Programs that another benchmark starts."""


def test_every_benchmark_is_run_here() -> None:
    folder = ROOT / "tests" / "bench"
    programs = [path for path in folder.rglob("*.py") if 'if __name__ == "__main__":' in path.read_text()]
    modules = [path.parent if path.name == "__main__.py" else path.with_suffix("") for path in programs]
    names = {".".join(module.relative_to(folder).parts) for module in modules}
    assert names == set(SHORTEST) | PARTS


@pytest.mark.parametrize("name", SHORTEST)
def test_benchmark_runs_for_its_shortest_stretch(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    arguments = [f"tests.bench.{name}", *SHORTEST[name].format(folder=tmp_path).split()]
    cache = tmp_path_factory.getbasetemp() / "benchmarks"  # one text and one start for all: a minute of CPU each
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DILOCOXD_CACHE": str(cache)}
    found, said = tmp_path / "found", tmp_path / "said"
    with found.open("wb") as output, said.open("wb") as errors:
        if name in OF_STARTS:
            del environment[WARM_VARIABLE]
            status = subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=ROOT, env=environment, stdout=output, stderr=errors, check=False, timeout=LIMIT_S,
            ).returncode  # fmt: skip
        else:
            passed = {FOUND_VARIABLE: output.fileno()}
            process = fork_ordered(
                warm_benchmark.__name__, arguments, ROOT, environment, passed, output=errors.fileno()
            )
            try:
                status = process.wait(LIMIT_S)
            finally:
                process.kill()
    assert status == 0, found.read_text()[-3000:] + said.read_text()[-3000:]
    assert found.read_text(), "it says what it found"
