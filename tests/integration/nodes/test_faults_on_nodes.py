"""What a node can lose, at every moment of a round: nobody else loses a phase, and all have equal anchors after it.

A site of three machines, of which n1 has a stage and an outer part, and a site of one. The head is held at the moment
(dilocoxd/ipc/fault.py) while the fault happens. Who ends is started again, as its service manager would. Prints the
table of docs/lab/benchmarks.md; `make test-node-faults`.
"""

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest

from dilocoxd.store.snapshots import ANCHOR_NAME, list_rounds, read_index
from tests.harness.running.network_namespaces import PORT as PEER_PORT
from tests.harness.running.sites import wait_until
from tests.harness.running.strikes import events_of, now, wait_event
from tests.harness.running.training import PATIENCE_S, assert_states_agree, log_of, wait_joint_round
from tests.integration.nodes.machines import NODES, Machines, running_machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.node_faults, pytest.mark.timeout(900)]
VICTIM = "n1"
DATA_VARIABLE = "DILOCOXD_NODE_FAULTS_DATA"
"""`nodes`: the node sends the payloads of its part itself (network.data)."""
MOMENTS = ("training", "form", "exchange", "apply", "snapshot")
EXIT_FAILED = 1
HEIGHT_MIN = 24
"""So far behind a site takes a snapshot (protocol/09-catching-up.md L11)."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    sends = {"network.data": f'"{os.environ.get(DATA_VARIABLE, "head")}"'}
    with running_machines(tmp_path_factory.mktemp("faults"), "nf", {VICTIM: 1}, sends) as found:
        wait_joint_round([found.one, found.three])
        yield found


def kill_all(machines: Machines) -> None:
    """The node with all its processes; it is started again."""
    lose_power(machines)
    machines.start_node(VICTIM)


def lose_power(machines: Machines) -> None:
    for pid in machines.network.pids(VICTIM):
        os.kill(pid, signal.SIGKILL)
    machines.nodes[VICTIM].process.wait()
    machines.fault.release()
    until_missed(machines)


def cut_link(machines: Machines) -> None:
    machines.network.cut(VICTIM)
    machines.fault.release()
    until_missed(machines)
    machines.network.heal(VICTIM)


def wipe_disk(machines: Machines) -> None:
    lose_power(machines)
    shutil.rmtree(machines.folder / VICTIM)
    machines.start_node(VICTIM)


def kill_agent(machines: Machines) -> None:
    """And nothing else: what it started ends with it. It is started again at once."""
    machines.nodes[VICTIM].kill()
    machines.fault.release()
    machines.start_node(VICTIM)


def kill_head(machines: Machines) -> None:
    """Its daemon, and what ends with it; it is started again."""
    three = machines.three
    assert three.process is not None
    os.kill(three.process.pid, signal.SIGKILL)
    three.process.wait()
    wait_until(lambda: not machines.network.pids("head"), "all of the head has ended", PATIENCE_S)
    machines.fault.release()
    three.start()


FAULTS: dict[str, Callable[[Machines], None]] = {
    "node killed": kill_all,
    "link cut": cut_link,
    "disk wiped": wipe_disk,
    "agent killed": kill_agent,
    "head restarted": kill_head,
}


def until_missed(machines: Machines) -> None:
    """The site says which machine it waits for. Its daemon has not ended for that."""
    host = f"({machines.network.address(VICTIM)})"
    alerts = machines.three.status

    def is_missed() -> bool:
        return any(each["code"] == "node_missing" and host in each["text"] for each in alerts().get("alerts", []))

    wait_until(is_missed, f"{VICTIM} is missed", PATIENCE_S, machines.three.describe)


def keep_up(machines: Machines) -> bool:
    """Start the head again if it has ended for what a node has lost. Whether it runs."""
    three = machines.three
    assert three.process is not None
    status = three.process.poll()
    if status is None:
        return True
    assert status == EXIT_FAILED, three.describe()
    three.start()
    return False


def until_back(machines: Machines, height: int) -> None:
    """An entry of this height or later names both, and all stages run."""
    peers = {machines.one.says("peer_id"), machines.peers["three"]}

    def is_back() -> bool:
        if not keep_up(machines) or set(machines.stages()) != set(NODES):
            return False
        rows = machines.one.get(f"/v1/rounds?from={height}&limit=1000") or []
        return any({each["peer"] for each in row["contributors"]} >= peers for row in rows)

    wait_until(is_back, "both in one entry", PATIENCE_S, machines.three.describe)


def wait_moment(machines: Machines, moment: str) -> None:
    if moment != "training":
        machines.fault.arm(moment)
        machines.fault.wait_held(moment, PATIENCE_S)
        return

    def is_training() -> bool:
        status = machines.three.status()
        state = (status.get("round") or {}).get("state")
        return state in ("idle", "gathering") and (status.get("phase") or {}).get("inner_step", 0) > 1

    wait_until(is_training, "training", PATIENCE_S, machines.three.describe)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_both_sites_go_on_with_equal_anchors(machines: Machines, fault: str, moment: str) -> None:
    one = machines.one
    machines.peers.setdefault("three", machines.three.says("peer_id"))
    wait_moment(machines, moment)
    at, height = now(), one.says("height") + 1
    FAULTS[fault](machines)
    until_back(machines, height)
    back_s = now() - at
    assert_states_agree(one, machines.three)
    times = [event["time"] for event in events_of(one, "round.committed")]
    gap_s = max(later - before for before, later in itertools.pairwise(times) if later >= at)
    ended = sum(event["time"] >= at for event in events_of(machines.three, "daemon.ended", "daemon.stopped"))
    machines.rows.append(f"| {fault} | {moment} | {back_s:.1f} | {gap_s:.1f} | {ended} |")
    print(machines.rows[-1])


def test_no_phase_of_the_site_of_one_was_lost(machines: Machines) -> None:
    num_phases = machines.stop_and_count()
    print("| fault | moment | both in an entry again s | longest gap of the others s | head ended |")
    print("\n".join(machines.rows))
    print(f"{num_phases} phases of the site of one, all in the chain")


def test_site_whose_snapshots_are_damaged_fetches_what_differs(machines: Machines) -> None:
    """Its log leads to no state without them. The other site goes on meanwhile; the last."""
    one, three = machines.one, machines.three
    one.start()
    three.start()
    one.wait_height(HEIGHT_MIN, PATIENCE_S)
    address = f"/ip4/{machines.network.address('head')}/tcp/{PEER_PORT}/p2p/{three.says('peer_id')}"
    assert one.stop() == 0
    snapshots = one.run_dir / "snapshots"
    log_of(one).drop_payloads(list_rounds(snapshots)[0])
    for number in list_rounds(snapshots):
        path = snapshots / str(number) / ANCHOR_NAME
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    newest = read_index(snapshots / str(list_rounds(snapshots)[-1]))
    since = now()
    one.environment["DILOCOXD_NETWORK__BOOTSTRAP"] = f'["{address}"]'  # a founder would begin again alone
    one.start()
    found = wait_event(one, "recovery.finished", since, PATIENCE_S)
    told = [event["text"] for event in events_of(one, "alert.raised", since=since)]
    assert any("is damaged in chunk 0" in text for text in told) and any(
        "the log was cut at 0" in text for text in told
    )
    wait_joint_round([one, three])
    assert_states_agree(one, three)
    (anchor,) = (file.size for file in newest.files if file.name == ANCHOR_NAME)
    print(f"snapshot {newest.total_bytes} bytes, anchor {anchor}; received {found['bytes_received']}")
    assert one.stop() == 0
