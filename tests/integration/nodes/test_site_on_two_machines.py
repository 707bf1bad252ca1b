"""A site whose two stages train on two machines, each with a network of its own, and a site of one: one model.

Real daemons and a real `dilocoxd node`. The node is lost with all that runs on it, in the middle of training; the site
says whom it misses, and the other one goes on.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.cli.main import cli
from tests.harness.running.run_directories import found_run, free_port, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import (
    PATIENCE_S,
    assert_logs_agree,
    assert_states_agree,
    founder_options,
    site_options,
    wait_contributions_after,
    wait_joint_round,
    write_corpus,
)
from tests.integration.nodes.node_process import NodeProcess, node_process

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def lay_out(site: SiteProcess, port: int) -> None:
    """Two stages, the second of them on a node."""
    settings = ["parallel.pipeline=2", "cluster.stages=1", "cluster.host=127.0.0.1", f"cluster.port={port}"]
    cli.main(["config", "set", str(site.run_dir), *settings], standalone_mode=False)


@contextlib.contextmanager
def node_of(site: SiteProcess, folder: Path, port: int) -> Iterator[NodeProcess]:
    key = site.run_dir / "node.key"
    wait_until(key.exists, "the key", PATIENCE_S, site.describe)
    with node_process(port, key, folder, 0, num_stages=1) as node:
        yield node


def alerts(site: SiteProcess) -> list[str]:
    return [alert["code"] for alert in site.status()["alerts"]]


def test_site_on_two_machines_and_site_of_one_train_one_model(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=8))
    port = free_port()
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        lay_out(b, port)
        with sites(b):
            b.start()
            with node_of(b, tmp_path / "node", port) as node:
                wait_joint_round([a, b])
                assert_states_agree(a, b)
                (stage,) = b.status()["nodes"]["stages"]
                assert (stage["stage"], stage["state"]) == (1, "running")
                node.kill()
                wait_until(lambda: "node_missing" in alerts(b), "the site misses its node", PATIENCE_S, b.describe)
                assert "with stage 1, gone since" in b.status()["waiting_for"]
                a.wait_height(a.status()["height"] + 2, PATIENCE_S)  # the other site goes on
            with node_of(b, tmp_path / "node", port):
                wait_contributions_after(b, a.status()["height"])
                assert_states_agree(a, b)
                assert b.stop() == 0
            assert a.stop() == 0
            assert_logs_agree(a, b)
