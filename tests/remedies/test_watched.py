"""Remedies of watched alerts, in this process: a thing is broken, the words are followed, the alert goes."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.config.site import NetworkSection
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.telemetry.sinks import Scalar, Sink, Writer, open_sinks
from tests.harness.synthetic.fake_view import NAMES, PEERS
from tests.remedies.test_findings import run as run_fixture, set_site
from tests.remedies.test_machine import in_own_mounts
from tests.unit.cli.test_operator import Served, run as typed
from tests.unit.daemon.observe.test_alert_rules import World

run = run_fixture
TEN_MINUTES_S = 600.0
FRIEND = "QmV3nFQT4Rz4mq9KbBqZzNnQKp1Zy2a1Yx8KZAgNPJX42n"
SAVE = """
import json, pathlib, sys
from dilocoxd.errors import StoreError
from dilocoxd.swarm.discovery.peers_file import PeersFile
try:
    PeersFile(pathlib.Path(sys.argv[1])).save()
    print(json.dumps(["saved"]))
except StoreError as error:
    print(json.dumps(["peers_json"]))
"""
SIZE = """
import json, shutil, sys
found = shutil.disk_usage(sys.argv[1])
print(json.dumps([found.free, found.total]))
"""


@pytest.fixture
def api() -> Iterator[Served]:
    served = Served()
    served.start()
    yield served
    served.stop()


class Stuck:
    """A metrics writer in a place that takes nothing."""

    def __init__(self) -> None:
        self.is_well = threading.Event()

    def write(self, scalar: Scalar) -> None:
        self.is_well.wait()

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.remedy("alert:sink_dropping")
@pytest.mark.parametrize("way", ["place", "off"])
def test_a_sink_that_is_stuck_is_repaired_or_switched_off(run: Path, way: str) -> None:
    assert kind_of("sink_dropping").remedy == "Check that place, or switch the sink off in site.toml."
    writer, world = Stuck(), World()
    sink = Sink("test", lambda: as_writer(writer), queue_max=2)

    def offer(number: int) -> None:
        for step in range(number):
            sink.offer(Scalar("loss/inner", 1.0, step, 1.0))
        world.dropped = sink.num_dropped

    world.look()
    offer(20)
    assert "sink_dropping" in world.look()
    if way == "place":
        writer.is_well.set()
        sink.close(60.0)
        world.dropped = sink.num_dropped
    else:
        set_site(run, "sinks.tensorboard=board")
        set_site(run, "sinks.tensorboard=")
        sinks = open_run_dir(run).load()[1].sinks
        assert not open_sinks(sinks.tensorboard, sinks.wandb_project, "run", run)
        writer.is_well.set()
        world.dropped = 0  # the daemon was started again for the new site.toml
    assert "sink_dropping" not in world.wait(TEN_MINUTES_S)


def as_writer(writer: Stuck) -> Writer:
    return writer


@pytest.mark.remedy("alert:bad_input")
@pytest.mark.parametrize("knocks_every_s", [5.0, 25.0])
def test_a_peer_that_sends_nonsense_is_left_out_as_told(api: Served, knocks_every_s: float) -> None:
    remedy = kind_of("bad_input").remedy
    for words in (
        "`bad_input` in `dilocoxd status --json`",
        "`dilocoxd peers disconnect SITE`",
        "network.peers_allowed",
    ):
        assert words in remedy, "the remedy no longer says so: follow what it says"
    peer, world = PeerId(PEERS[1]), World()
    guard = PeerGuard(lambda: world.now)
    for _ in range(30):
        guard.count(peer, "malformed")
        world.change(bad_input=guard.bad_input())
        found = world.look()
    assert "bad_input" in found
    assert isinstance(json.loads(typed("status", "--json", api.url)[1])["status"]["bad_input"], dict)
    assert typed("peers", "disconnect", NAMES[PEERS[1]], api.url)[0] == 0
    network = NetworkSection(peers_allowed=(FRIEND,))
    guard, world = PeerGuard(lambda: world.now, allowed=frozenset(map(PeerId, network.peers_allowed))), World()
    for _ in range(60):  # it goes on knocking, and is refused at the door
        with pytest.raises(WireError, match="not_allowed"):
            guard.admit(peer)
        guard.count(peer, "not_allowed")
        world.change(bad_input=guard.bad_input())
        assert "bad_input" not in world.wait(knocks_every_s)


@pytest.mark.remedy("alert:peers_json")
def test_the_list_of_peers_is_written_again_once_there_is_space(tmp_path: Path) -> None:
    assert kind_of("peers_json").remedy.startswith("Free some disk space")
    save = f"{sys.executable} -c '{SAVE}' \"$1/peers.json\""
    found = in_own_mounts(
        f'mount -t tmpfs -o size=64k tmpfs "$1"\n{save}\nhead -c 1m /dev/zero >"$1/other" || true\n{save}\n'
        f'rm "$1/other"\n{save}',
        str(tmp_path),
    )
    assert found == [["saved"], ["peers_json"], ["saved"]]


@pytest.mark.remedy("alert:disk_low")
def test_a_run_directory_on_a_full_disk_moves_as_told(tmp_path: Path) -> None:
    assert kind_of("disk_low").remedy.startswith("Free space, or move the run directory to a larger disk")
    size = f"{sys.executable} -c '{SIZE}'"
    sizes: list[Any] = in_own_mounts(
        'mkdir "$1/small" "$1/large"\nmount -t tmpfs -o size=64m tmpfs "$1/small"\n'
        f'mount -t tmpfs -o size=4g tmpfs "$1/large"\nmkdir "$1/small/run"\n{size} "$1/small/run"\n'
        f'mv "$1/small/run" "$1/large/run"\n{size} "$1/large/run"',
        str(tmp_path),
    )
    found = []
    world = World()
    for free, total in sizes:
        world.disk = (free, total, 0)
        found.append("disk_low" in world.look())
    assert found == [True, False]
