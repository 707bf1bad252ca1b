"""From the loss of a node with trainers to training again: `python -m tests.bench.restarts.node_loss`, as root.

One site whose three stages train on three machines, each a network namespace, with a third node that has room. A node
is lost, the third one takes its stage over, and the lost one comes back to be the next spare. `killed`: all its
processes end at once; `silent`: its cable is cut, so that nobody tells the head. Seconds from the loss: noticed (the
head has given the trainers up), placed (each stage has a node), loaded (the trainers have model, anchor and moments),
and the first inner step. Part of it is waited on purpose: STAGE_CHOICE_S (daemon/head/stage.py) for the lost node, and
before a restart 0.5 s, which doubles with each one within ten minutes, up to 5 s.
`head`: its daemon is killed and started at once; noticed is when all of it has ended.
"""

import argparse
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.bench import end_when_told
from tests.harness.running.network_namespaces import NamespacedSite, Network, namespaced
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.training import founder_options
from tests.integration.nodes.node_process import NodeProcess

NODES = ("n1", "n2", "n3")
PORT = 31340
PATIENCE_S = 150.0
LOOK_S = 0.03
HEAD = "head"
"""Its daemon is killed, not a node."""
WAYS = ("killed", "silent", HEAD)


@dataclass(frozen=True)
class Loss:
    """Seconds from the loss of a node."""

    noticed: float
    placed: float
    loaded: float
    training: float


class Bench:
    """The site and its nodes."""

    def __init__(self, network: Network, site: NamespacedSite, folder: Path) -> None:
        self.network = network
        self.site = site
        self.nodes: dict[str, NodeProcess] = {}
        self._folder = folder

    def start(self, name: str) -> None:
        """A node with room for one stage."""
        head, key = f"{self.network.address('head')}:{PORT}", self.site.run_dir / "node.key"
        self.nodes[name] = NodeProcess(head, key, self._folder / name, 0, 1, self.network.namespace(name))

    def end(self, name: str) -> None:
        """All of its processes at once."""
        for pid in self.network.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nodes[name].process.wait()

    def until(self, condition: Callable[[dict[str, Any]], Any], what: str) -> None:
        """Of the status."""
        wait_until(lambda: condition(self.site.status()), what, PATIENCE_S, self.site.describe, poll_s=LOOK_S)

    def lose(self, name: str, way: str) -> Loss:
        """Lose this node, until the site trains without it."""
        generation = self.site.state()["workers"]["trainer"]["generation"]
        began = time.monotonic()
        if way == "killed":
            self.end(name)
        else:
            self.network.cut(name)
        self.until(lambda status: _trainer(status).get("state") in ("lost", "starting"), "the loss is noticed")
        times = [time.monotonic() - began]
        steps = self.site.state()["totals"]["inner_steps"]
        return self._until_trained(began, times, generation, steps)

    def restart_head(self) -> Loss:
        """Kill the head's daemon and start it at once, until the site trains; `noticed`: nothing of it runs."""
        assert self.site.process is not None
        began = time.monotonic()
        os.kill(self.site.process.pid, signal.SIGKILL)
        self.site.process.wait()
        wait_until(lambda: not self.network.pids("head"), "all of the head has ended", PATIENCE_S, poll_s=LOOK_S)
        times = [time.monotonic() - began]
        self.site.start()
        return self._until_trained(began, times, 0, 0)

    def _until_trained(self, began: float, times: list[float], generation: int, steps: int) -> Loss:
        """`times` so far, with what follows after this generation and so many inner steps."""

        def reached(condition: Callable[[dict[str, Any]], Any], what: str) -> None:
            self.until(condition, what)
            times.append(time.monotonic() - began)

        def is_new(status: dict[str, Any]) -> bool:
            return bool(_trainer(status).get("generation", 0) > generation)

        reached(lambda status: is_new(status) and _stages(status) == 2, "each stage has a node")
        reached(lambda status: is_new(status) and _trainer(status)["state"] == "running", "the model is loaded")
        reached(lambda status: (status.get("totals") or {}).get("inner_steps", 0) > steps, "it trains")
        return Loss(*times)

    def bring_back(self, name: str, way: str) -> None:
        """As the next spare."""
        if way == "killed":
            self.start(name)
        else:
            self.network.heal(name)
        self.until(lambda status: (status.get("nodes") or {}).get("free_places") == 1, "a spare node")

    def one_that_trains(self) -> str:
        """Name of a node that has a stage now."""
        busy = [stage["node"] for stage in self.site.state()["nodes"]["stages"]]
        return next(name for name in NODES if any(f"({self.network.address(name)})" in node for node in busy))


def _trainer(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (status.get("workers") or {}).get("trainer") or {}
    return found


def _stages(status: dict[str, Any]) -> int:
    return sum(stage["state"] == "running" for stage in (status.get("nodes") or {}).get("stages", []))


@contextlib.contextmanager
def running(folder: Path, names: Sequence[str] = NODES, more: Mapping[str, str] | None = None) -> Iterator[Bench]:
    """A site that trains on two of these nodes; a third one is a spare. `more`: of run.toml and site.toml."""
    with ExitStack() as stack:
        network, (site, *_) = stack.enter_context(namespaced(f"nl{os.getpid() % 10000}", folder, ("head", *names)))
        layout = {
            "model.num_layers": "3",
            "parallel.pipeline": "3",
            "parallel.microbatches": "4",
            "cluster.stages": "2",
            "cluster.host": f'"{network.address("head")}"',
            **(more or {}),
        }
        options = [each for name, value in layout.items() for each in ("--set", f"{name}={value}")]
        arguments = ["init", "tiny", *site.options(), *founder_options(folder), *options]
        result = CliRunner().invoke(cli, arguments, standalone_mode=False)
        assert result.exception is None, f"{result.exception}\n{result.output}"
        stack.enter_context(sites(site))
        bench = Bench(network, site, folder)
        site.start()
        wait_until((site.run_dir / "node.key").exists, "the key", PATIENCE_S, site.describe)
        for name in names:
            bench.start(name)
            stack.callback(bench.end, name)
        bench.until(lambda status: (status.get("totals") or {}).get("inner_steps"), "a first step")
        bench.until(lambda status: status["nodes"]["free_places"] == len(names) - 2, "a spare node")
        yield bench


def table(found: Sequence[tuple[str, Loss]]) -> str:
    """Markdown, in the order of the losses: the pause before a restart grows."""
    names = [each.name for each in fields(Loss)]
    lines = [f"| node | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {way} | {' | '.join(f'{each:.1f}' for each in astuple(loss))} |" for way, loss in found]
    return "\n".join(lines)


def main() -> None:
    """In turn, so that a load that comes and goes meets both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, help="losses of each kind (default: 1)")
    parser.add_argument("--ways", default=",".join(WAYS), help="kinds of loss (default: all)")
    options = parser.parse_args()
    found: list[tuple[str, Loss]] = []
    with tempfile.TemporaryDirectory(prefix="node-loss-") as folder, running(Path(folder)) as bench:
        for _ in range(options.times):
            for way in options.ways.split(","):
                if way == HEAD:
                    found.append((way, bench.restart_head()))
                    continue
                name = bench.one_that_trains()
                found.append((way, bench.lose(name, way)))
                bench.bring_back(name, way)
    print(f"load {os.getloadavg()[0]:.1f}")
    print(table(found))


if __name__ == "__main__":
    end_when_told()
    main()
