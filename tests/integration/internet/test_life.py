"""Three daemons over links that lose one packet of a hundred: they join, die and come back, and nobody is blamed.

Nothing given up in the whole of it is what is asked here. How many round trips an exchange takes on such links is a
benchmark's: `python -m tests.bench.long_links`; here one packet lost twice would decide.
"""

import os
from pathlib import Path

import pytest

from tests.harness.internet.conditions import rtt
from tests.harness.internet.life import live

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

RTTS_S, LOSS = (0.02, 0.1, 0.3), 0.01
JITTER_S = 0.02
PHASE_S = 2.5
PROGRESS_TIMEOUT_S = 20.0
"""Not the 5 s of the preset for one machine: TCP waits 0.6, 1.2, 2.4 s for a packet that is lost again and again."""


@pytest.mark.parametrize("rtt_s", RTTS_S)
def test_sites_join_die_and_come_back_over_lossy_links_and_nobody_is_suspected(tmp_path: Path, rtt_s: float) -> None:
    links = rtt(rtt_s, LOSS, JITTER_S)
    life = live(f"ch{os.getpid() % 10000}li", tmp_path, links, PHASE_S, 1, PROGRESS_TIMEOUT_S)
    assert life.suspicions == ()
    assert life.exit_codes == (0, 0, 0)
    assert len(set(life.heads)) == 1
