"""Torch's elastic agent with its own fork server, for tests/bench/restarts/generations.py: `... NUM_RANKS`, folders on
stdin."""

import multiprocessing
import os
import socket
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.bench.restarts import rank as generations_rank


def rank(out: str) -> None:
    """In the forked process."""
    os.environ["BENCH_OUT"] = out
    generations_rank.main()


def free_port() -> int:
    """Free a moment ago; the agent has no way to be given a socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main(num_ranks: int) -> None:
    """One generation for each line."""
    multiprocessing.set_forkserver_preload(["dilocoxd.trainer.main", "dilocoxd.outerworker.main"])
    for number, line in enumerate(sys.stdin):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=num_ranks, run_id=f"g{number}", rdzv_backend="static",
            rdzv_endpoint=f"127.0.0.1:{free_port()}", rdzv_configs={"rank": 0, "timeout": 60}, max_restarts=0,
            monitor_interval=0.1, start_method="forkserver", local_addr="127.0.0.1",
        )  # fmt: skip
        elastic_launch(config, rank)(line.strip())
        print("over", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
