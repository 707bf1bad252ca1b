"""The OpenAPI document is kept: schemathesis sends generated requests to the real view and control of a daemon.

No answer is a server error, none has an undocumented status, type or shape. The daemon object is not started; its
journal is filled. Left out: /v1/events, which never ends (tests/unit/api/test_stream.py), and /readyz, whose 503 is
its "no".
"""

import asyncio
import sys
from pathlib import Path

import pytest

from dilocoxd.answers.history import SiteSpan
from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from tests.unit.daemon.test_operator_side import PEER, Recorded

TOKEN = "0123456789abcdef0123"
LIMIT_S = 240.0


def fill(world: Recorded) -> None:
    """Something of everything."""
    journal = world.daemon.journal
    for index in range(30):
        journal.add_failure(index, "attempt 0: nobody")
        journal.add_inner_loss(index, 5.0 - index / 10)
        journal.add_validation_loss(index, float("nan") if index == 3 else 5.5)
        journal.add_span("compute", 10.0 * index, 10.0 * index + 9, index)
        journal.phases.append(SiteSpan("phase", 10.0 * index, 10.0 * index + 9, index))
        journal.others.look(PEER, "training", 10.0 * index)
    world.daemon.alerts.alert("disk_low", "1 GB left")


@pytest.mark.slow
async def test_generated_requests_meet_no_server_error_and_no_other_shape(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run")
    fill(world)
    section = ApiSection(port=0, requests_per_s_max=100_000)
    async with serve_api(world.daemon.view, world.control, section, TOKEN) as (host, port):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", f"http://{host}:{port}/v1/openapi.json",
            "--exclude-path", "/v1/events", "--exclude-path", "/readyz", "-H", f"Authorization: Bearer {TOKEN}",
            "--phases", "coverage,fuzzing", "--max-examples", "5", "--seed", "1",
            "--request-timeout", "60", "--no-color",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
        )  # fmt: skip
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    text = output.decode()
    print(text[-800:])
    assert process.returncode == 0, text[-6000:]
    assert "generated" in text
    assert world.stopped, "leave was called, and only told what to do"
