"""What a site on three machines can lose between two moments: a node or the head when a payload is whole at the node
and the head has not heard of it; a node that a spare has replaced, which then is a spare itself; all that the head has.

Real daemons and real `dilocoxd node`s, and a site of one, which loses no phase by any of it. All anchors are equal
afterwards. The tests share the sites, which run on from one to the next.
"""

import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from tests.harness.running.sites import wait_until
from tests.harness.running.training import PATIENCE_S, assert_states_agree
from tests.integration.nodes.machines import NODES, Machines, join_anew, running_machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
MBIT_PER_S = 1.0
"""Slow enough to stop the head while payloads come in."""
COMING = 20_000
"""Bytes of the payloads of a round, not all of them."""
EXIT_FAILED = 1


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    # One part, and room for it on both nodes; each site sums all segments, so something comes to it in each round.
    more = {"network.data": '"nodes"', "cluster.outer_parts": "1", "cluster.head_grace_s": "20"}
    gathers = {"reduction.reducer": "gather"}
    with running_machines(tmp_path_factory.mktemp("lost"), "lb", dict.fromkeys(NODES, 1), more, gathers) as found:
        machines_train(found, 1)
        yield found


def part_node(machines: Machines) -> str:
    """Which node runs the part now; empty: none does."""
    (part,) = (machines.three.status().get("nodes") or {}).get("parts") or [{}]
    hosts = {machines.network.address(name): name for name in NODES}
    return hosts[part["node"].rpartition("(")[2].rstrip(")")] if part.get("state") == "running" else ""


def keep_up(machines: Machines) -> bool:
    """As its service manager does: start the head again if it has ended. Whether it runs."""
    process = machines.three.process
    assert process is not None
    if (status := process.poll()) is None:
        return True
    assert status == EXIT_FAILED, machines.three.describe()
    machines.three.start()
    return False


def machines_train(machines: Machines, height: int) -> None:
    """Both sites are in an entry of this height or later, all stages run, and all have one state."""

    def is_so() -> bool:
        if not keep_up(machines) or set(machines.stages()) != set(NODES):
            return False
        peers = {machines.one.status().get("peer_id"), machines.three.status().get("peer_id")}
        rows = machines.one.get(f"/v1/rounds?from={height}&limit=1000") or []
        return any({each["peer"] for each in row["contributors"]} >= peers for row in rows)

    wait_until(is_so, "both in one entry", PATIENCE_S, machines.three.describe)
    assert_states_agree(machines.one, machines.three)


def lose(machines: Machines, name: str) -> None:
    """All processes of a machine."""
    for pid in machines.network.pids(name):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not machines.network.pids(name), f"{name} is gone", PATIENCE_S)


def stop_head_with_payloads_unheard(machines: Machines) -> str:
    """The other site's payloads come to the node while the head's daemon is stopped: nobody hears of them. Which."""
    name = part_node(machines)
    counted = machines.counted(name, "one")
    machines.network.shape("one", MBIT_PER_S)
    wait_until(lambda: counted() > COMING, "payloads on their way", PATIENCE_S, machines.three.describe)
    signal_head(machines, signal.SIGSTOP)
    seen = -1

    def is_quiet() -> bool:
        nonlocal seen
        before, seen = seen, counted()
        return before == seen

    wait_until(is_quiet, "nothing more comes", PATIENCE_S, poll_s=0.5)
    machines.network.unshape("one")
    return name


def signal_head(machines: Machines, number: signal.Signals) -> None:
    assert machines.three.process is not None
    os.kill(machines.three.process.pid, number)


def lose_head(machines: Machines) -> None:
    lose(machines, "head")
    assert machines.three.process is not None
    machines.three.process.wait()


def test_node_that_dies_with_payloads_that_its_head_has_not_heard_of(machines: Machines) -> None:
    height = machines.one.says("height") + 1
    name = stop_head_with_payloads_unheard(machines)
    lose(machines, name)
    machines.nodes[name].process.wait()
    signal_head(machines, signal.SIGCONT)
    machines.start_node(name)
    machines_train(machines, height)


def test_head_that_dies_before_it_hears_of_payloads_that_its_node_has(machines: Machines) -> None:
    height = machines.one.says("height") + 1
    stop_head_with_payloads_unheard(machines)
    lose_head(machines)
    machines.three.start()
    machines_train(machines, height)


def test_part_that_is_killed_goes_on_beside_a_spare_that_had_it_earlier(machines: Machines) -> None:
    """The spare is no news of the node that has it now, and the head's daemon does not end."""
    first = part_node(machines)
    second = next(name for name in NODES if name != first)
    machines.nodes[first].kill()
    wait_until(lambda: keep_up(machines) and part_node(machines) == second, "it moves", PATIENCE_S)
    machines.start_node(first)
    machines_train(machines, machines.one.says("height") + 1)
    assert machines.three.process is not None
    head = machines.three.process.pid
    (part,) = machines.nodes[second].parts()
    os.kill(part, signal.SIGKILL)
    wait_until(lambda: machines.nodes[second].parts() not in ([], [part]), "another process", PATIENCE_S)
    machines_train(machines, machines.one.says("height") + 1)
    assert (machines.three.process.pid, part_node(machines)) == (head, second)


def test_head_that_lost_all_that_it_had_joins_anew_and_trains_with_the_same_nodes(machines: Machines) -> None:
    """As another member, for its identity is gone. Its nodes wait, and say so while the key is another one."""
    before, key = machines.three.says("peer_id"), (machines.three.run_dir / "node.key").read_bytes()
    pids = {name: node.pid for name, node in machines.nodes.items()}
    lose_head(machines)
    shutil.rmtree(machines.three.run_dir)
    machines.until_nobody_trains()
    machines.one.wait_height(machines.one.says("height") + 2, PATIENCE_S)  # the other site goes on
    join_anew(machines)
    machines.three.start()  # makes a key of its own
    for node in machines.nodes.values():
        node.until(lambda each=node: "it has another node key than before" in each.said(), "it says so")  # type: ignore[misc]
    wait_until(
        lambda: "was refused: the node key or the version there" in str(machines.three.status().get("waiting_for")),
        "the head says so",
        PATIENCE_S,
        machines.three.describe,
    )
    assert machines.three.stop() == 0
    (machines.three.run_dir / "node.key").write_bytes(key)
    machines.three.start()
    machines_train(machines, machines.one.says("height") + 1)
    assert machines.three.says("peer_id") != before
    assert {name: node.pid for name, node in machines.nodes.items() if node.process.poll() is None} == pids


def test_no_phase_of_the_site_of_one_was_lost(machines: Machines) -> None:
    """The last: it stops both."""
    machines.stop_and_count()
