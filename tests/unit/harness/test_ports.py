"""Ports for sites: no test process gives away what another one has, nor what the kernel gives to connections."""

import subprocess
import sys
from pathlib import Path

from tests.harness.running.run_directories import free_port
from tests.harness.running.sites import ROOT

NUM_PORTS = 5
ASK = f"from tests.harness.running.run_directories import free_port; print(*[free_port() for _ in range({NUM_PORTS})])"


def test_processes_that_live_at_the_same_time_share_no_port_with_each_other_or_with_connections() -> None:
    ours = {free_port() for _ in range(NUM_PORTS)}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    theirs = {int(text) for text in done.stdout.split()}
    assert len(ours | theirs) == 2 * NUM_PORTS
    first_of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ours | theirs) < first_of_connections
