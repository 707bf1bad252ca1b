"""Two sites, each with a training loop of its own in its own process, train one torch module, as the tutorial says.

The loops are examples/own_loop.py, as the tutorial shows it; daemons, sockets and buffers are those of a service.
"""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.harness.paced.sitecustomize import STEP_VARIABLE
from tests.harness.running.run_directories import free_port
from tests.harness.running.sites import wait_until
from tests.tutorials.documents import ROOT, commands_of, run, write_files

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE_S = 240.0
EXAMPLE = ROOT / "examples" / "own_loop.py"
PACED = ROOT / "tests" / "harness" / "paced"
LINES_MAX = 15
STEP_S = "0.03"
"""Shortest step of the loops, which without it would take, with their daemons, all the CPU that there is."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path) and process.pid != os.getpid():
            for one in [*process.children(recursive=True), process]:
                one.send_signal(signal.SIGKILL)


def get(port: int, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return {}


def loops(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(folder) and process.info["cmdline"][1:2] == ["own_loop.py"]:
            found.append(process)
    return found


def test_two_loops_of_their_own_train_one_module(folder: Path) -> None:
    write_files("own-loop.md", folder)
    ports = {"API1": free_port(), "API2": free_port()}
    shown = commands_of("own-loop.md")
    environment = {"PYTHONPATH": f"{PACED}{os.pathsep}{ROOT}", STEP_VARIABLE: STEP_S}
    printed = run(shown, folder, environment | {name: str(port) for name, port in ports.items()}, PATIENCE_S)
    listing = next(text for one, text in zip(shown, printed, strict=True) if one.command.startswith("ls"))
    assert listing.split() == ["model.safetensors", "parameters.json"]
    apis = (ports["API1"], ports["API2"])

    def tell() -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.out")))

    def is_joint() -> bool:
        rows = get(apis[0], "/v1/rounds?limit=1000") or []
        return sum(len(row["contributors"]) == 2 for row in rows) >= 3

    wait_until(is_joint, "three rounds of both sites", PATIENCE_S, tell)
    assert_equal_anchors(apis, tell)
    # A loop that is killed costs its site nothing but what it had not exchanged; the next one is let in.
    second = next(one for one in loops(folder) if one.cmdline()[2] == "second")
    second.kill()

    def status() -> Any:
        return wait_until(lambda: get(apis[1], "/v1/status"), "an answer", PATIENCE_S, tell)

    wait_until(lambda: status()["workers"]["trainer"]["state"] == "starting", "gone", PATIENCE_S, tell)
    height = status()["height"]
    command = "python own_loop.py second 1000000 > again.out 2>&1 &"
    run([type(shown[0])(command, ())], folder, environment, PATIENCE_S)
    me = status()["peer_id"]

    def is_back() -> bool:
        rows = get(apis[1], f"/v1/rounds?from={height + 1}&limit=1000") or []
        return any(me in {one["peer"] for one in row["contributors"]} for row in rows)

    wait_until(is_back, "a contribution of the second loop's next life", PATIENCE_S, tell)
    living = loops(folder)
    run([type(shown[0])(f"dilocoxd leave {name}", ()) for name in ("second", "first")], folder, {}, PATIENCE_S)
    _, alive = psutil.wait_procs(living, timeout=60)
    assert not alive, "a loop did not end with its daemon"
    rounds, last = re.findall(r"^round (\d+), loss ([0-9.]+)$", (folder / "first-loop.out").read_text(), re.M)[0]
    assert int(rounds) >= 3
    assert float(last) < 0.1, "the sine was not learnt"
    assert_model_is_in_the_snapshot(folder)


def assert_equal_anchors(apis: tuple[int, int], tell: Any) -> None:
    keys = ("height", "anchor_sha256", "state_digest")
    seen: list[set[tuple[object, ...]]] = [set(), set()]

    def is_equal() -> bool:
        for api, states in zip(apis, seen, strict=True):
            status = get(api, "/v1/status")
            if status and status["height"] >= 3:
                states.add(tuple(status[key] for key in keys))
        return bool(seen[0] & seen[1])

    wait_until(is_equal, "equal anchors at a height of at least 3", PATIENCE_S, tell)


def assert_model_is_in_the_snapshot(folder: Path) -> None:
    """The newest snapshot loads into the user's module by name, and it is not the one that the run began with."""
    newest = max((folder / "first" / "snapshots").iterdir(), key=lambda path: int(path.name))
    found, first = load_file(newest / "anchor.safetensors"), load_file(folder / "sine-model" / "model.safetensors")
    assert found.keys() == first.keys()
    assert not all(torch.equal(found[name], first[name]) for name in found)


def test_the_tutorial_shows_the_whole_example(tmp_path: Path) -> None:
    """Who installed the package has no copy of the repository."""
    write_files("own-loop.md", tmp_path)
    assert (tmp_path / "own_loop.py").read_text() == EXAMPLE.read_text()


def test_the_example_needs_few_lines() -> None:
    """What the run asks of a loop: the with block of the example, comments and blank lines left out."""
    body = EXAMPLE.read_text().split("    with Site(")[1].split("\n\n\n")[0]
    assert len([line for line in body.splitlines() if line.strip()]) + 1 <= LINES_MAX
