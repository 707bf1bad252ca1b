"""A site whose three stages train on three machines, each with a network of its own, and a site of one: one model.
One of its outer parts runs on a node too, and sends its payloads from there, and takes those of the other site there.

Real daemons and real `dilocoxd node`s. What is lost, and comes back: a node with all that ran there and its disk, the
daemon of the head, a cable. Each time the site says whom it misses, nobody trains alone, and the other site goes on.
The tests share the sites, which run on from one to the next. All moments of a round: test_faults_on_nodes.py.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.running.sites import wait_until
from tests.harness.running.training import (
    PATIENCE_S,
    assert_states_agree,
    wait_contributions_after,
    wait_joint_round,
)
from tests.integration.nodes.machines import NODES, Machines, running_machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    # A busy machine may take its time to see that a node is missed, and TCP as long again to go on.
    long = {"cluster.head_grace_s": "600", "workers.step_timeout_s": "1200"}
    sends = {"network.data": '"nodes"', **long}
    # Each site sums all segments: else it depends on the peer ids whether this part has any that the site owns.
    gathers = {"reduction.reducer": "gather"}
    with running_machines(tmp_path_factory.mktemp("three"), "tm", {"n2": 1}, sends, gathers) as found:
        yield found


def test_site_on_three_machines_and_site_of_one_train_one_model(machines: Machines) -> None:
    wait_joint_round([machines.one, machines.three])
    machines.until_back()
    assert sorted(machines.stages().values()) == [1, 2]
    for name in NODES:
        listened = machines.listened(name) - ({"0.0.0.0"} if machines.parts.get(name) else set())  # its data port
        assert listened == {machines.network.address(name)}, "what gloo says there is not sealed"
    assert "0.0.0.0" not in machines.listened("head")


def test_payloads_of_a_part_on_a_node_go_from_there_to_the_other_site(machines: Machines) -> None:
    """Past the head: the kernel of the other site counts what comes from the node, and the head sends none of it."""
    one = machines.one.says("peer_id")
    until_sends(machines, "it reaches the other site", lambda sends: sends["reached"] == [one])
    counted, before = machines.counted("one", "n2"), machines.sends()
    until_sends(machines, "both have sent results", lambda sends: sends["payloads"] >= before["payloads"] + 8)
    after = machines.sends()
    num_bytes = after["bytes"] - before["bytes"]
    assert num_bytes > 0 and counted() >= num_bytes
    assert after["payloads_by_head"] == before["payloads_by_head"]
    assert [peer["data_parts"] for peer in machines.three.get("/v1/peers") or []] == [[1]]
    assert_states_agree(machines.one, machines.three)


def test_contributions_of_the_other_site_come_straight_to_the_node_that_sums_them(machines: Machines) -> None:
    """Past the head: the kernel of the node counts what comes from the other site, and the head takes none of it."""
    until_receives(machines, "the other site reaches it", lambda receives: receives["payloads"] > 0)
    counted, before = machines.counted("n2", "one"), machines.receives()
    until_receives(machines, "two rounds", lambda receives: receives["payloads"] >= before["payloads"] + 4)
    after = machines.receives()
    num_bytes = after["bytes"] - before["bytes"]
    assert num_bytes > 0 and counted() >= num_bytes
    assert after["payloads_by_head"] == before["payloads_by_head"] and not after["rejected"]
    (node,) = nodes_seen(machines)
    assert node["is_reached"] and not node["reason"] and node["stop_segment"] > node["first_segment"]
    assert node["addresses"] == after["addresses"]
    assert_states_agree(machines.one, machines.three)


def test_node_that_a_firewall_keeps_from_the_other_site_leaves_its_payloads_to_the_head(machines: Machines) -> None:
    machines.network.cut("n2", ["one"])
    until_sends(machines, "it says so", lambda sends: [each["peer_id"] for each in sends["unreached"]] != [])
    before, received, height = machines.sends(), machines.receives(), machines.one.says("height")
    until_sends(machines, "the head sends", lambda sends: sends["payloads_by_head"] > before["payloads_by_head"])
    wait_contributions_after(machines.three, height)
    by_head = received["payloads_by_head"]
    until_receives(machines, "the head receives", lambda receives: receives["payloads_by_head"] > by_head)
    assert machines.sends()["payloads"] == before["payloads"]
    assert machines.receives()["payloads"] == received["payloads"]
    wait_until(lambda: [node["reason"] for node in nodes_seen(machines)] != [""], "it is told", PATIENCE_S)
    assert_states_agree(machines.one, machines.three)
    machines.network.heal("n2")
    until_sends(machines, "it sends again", lambda sends: sends["payloads"] > before["payloads"])
    until_receives(machines, "it receives again", lambda receives: receives["payloads"] > received["payloads"])
    machines.until_back()


def nodes_seen(machines: Machines) -> list[dict[str, Any]]:
    """Of the site on three machines, at the site of one."""
    (peer,) = machines.one.get("/v1/peers") or []
    found: list[dict[str, Any]] = peer["nodes"]
    return found


def until_sends(machines: Machines, what: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    wait_until(lambda: condition(machines.sends()), what, PATIENCE_S, machines.three.describe)


def until_receives(machines: Machines, what: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    wait_until(lambda: condition(machines.receives()), what, PATIENCE_S, lambda: f"{machines.receives()}")


def test_node_that_loses_its_processes_and_its_disk_is_named_and_replaced(machines: Machines) -> None:
    stage = machines.stages()["n1"]
    machines.nodes["n1"].kill()
    wait_until(lambda: not machines.network.pids("n1"), "all that ran there has ended", PATIENCE_S)
    shutil.rmtree(machines.folder / "n1")
    machines.until_missed("n1", stage)
    machines.until_nobody_trains()
    machines.one.wait_height(machines.one.says("height") + 2, PATIENCE_S)  # the other site goes on
    machines.start_node("n1")
    machines.until_back()


def test_head_that_is_killed_leaves_nobody_training_and_goes_on(machines: Machines) -> None:
    three = machines.three
    assert three.process is not None
    os.kill(three.process.pid, signal.SIGKILL)
    three.process.wait()
    wait_until(lambda: not machines.network.pids("head"), "all of the head has ended", PATIENCE_S)
    machines.until_nobody_trains()
    three.start()
    machines.until_back()


def test_node_whose_cable_is_cut_is_named_and_comes_back_by_itself(machines: Machines) -> None:
    stage, generation = machines.stages()["n2"], machines.three.says("workers")["trainer"]["generation"]
    machines.network.cut("n2")
    machines.until_missed("n2", stage)
    machines.network.heal("n2")
    machines.until_back()
    assert machines.three.says("workers")["trainer"]["generation"] == generation, "its trainers have stayed"


def test_no_phase_of_the_site_of_one_was_lost(machines: Machines) -> None:
    """The last: it stops both."""
    machines.stop_and_count()
