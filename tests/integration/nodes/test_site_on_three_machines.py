"""A site whose three stages train on three machines, each with a network of its own, and a site of one: one model.

Real daemons and real `dilocoxd node`s. What is lost, and comes back: a node with all that ran there and its disk, the
daemon of the head, a cable. Each time the site says whom it misses, nobody trains alone, and the other site goes on.
The tests share the sites, which run on from one to the next. All moments of a round: test_faults_on_nodes.py.
"""

import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from tests.harness.running.sites import wait_until
from tests.harness.running.training import PATIENCE_S, wait_joint_round
from tests.integration.nodes.machines import NODES, Machines, running_machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with running_machines(tmp_path_factory.mktemp("three"), "tm") as found:
        yield found


def test_site_on_three_machines_and_site_of_one_train_one_model(machines: Machines) -> None:
    wait_joint_round([machines.one, machines.three])
    machines.until_back()
    assert sorted(machines.stages().values()) == [1, 2]
    for name in NODES:
        assert machines.listened(name) == {machines.network.address(name)}, "what gloo says there is not sealed"
    assert "0.0.0.0" not in machines.listened("head")


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
    stage = machines.stages()["n2"]
    machines.network.cut("n2")
    machines.until_missed("n2", stage)
    machines.until_nobody_trains()
    machines.network.heal("n2")
    machines.until_back()


def test_no_phase_of_the_site_of_one_was_lost(machines: Machines) -> None:
    """The last: it stops both."""
    machines.stop_and_count()
