"""A peer that averages a vector again and again: `... peer WAY ADDRESS FIRST NUMBER MOST FOUNDERS ELEMENTS`.

Before each exchange it adds its NUMBER to all of it, so that who has lost a share has another mean than the rest.
MOST peers at a time; who has a NUMBER from FOUNDERS on is new among them.

WAY `gloo`: a ring of torch.distributed, made anew without the dead when it breaks: by a store that stays alive, told
that one is missing, which is the least that anybody needs. WAY `hivemind`: its averager, which finds groups by itself,
with the time-outs that hivemind's Optimizer gives it: without them it waited for a dead peer for ever. WAY `torchft`:
its manager over gloo, with a lighthouse at the first peer, which stays alive; settings of its documentation. A newcomer
of both first gets the state that the others have, by the library's own way. Says where it can be reached, waits for a
line, then prints a line for each exchange that is over, with a hash of what it has then; one of `group` 0 was given up.
"""

import hashlib
import importlib
import json
import socket
import sys
import time
from datetime import timedelta

import torch

PORT = 29600
PATIENCE_S = 300.0
LIGHTHOUSE_PORT = 29510
STEP_S, CHUNK_S = 60.0, 15.0
"""Defaults of hivemind.Optimizer: averaging_timeout, and next_chunk_timeout, which is its matchmaking_time."""
TICK_MS, JOIN_MS = 100, 10_000
"""Of torchft's lighthouse, as its README starts one."""
SAMPLE_EVERY = 97
"""Elements that are hashed: all of them would take the time of the exchange that follows."""


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def told(began: float, group: int, vector: torch.Tensor) -> None:
    """An exchange that began then is over; `group`: of so many peers, 0: it was given up."""
    ended = time.time()
    state = hashlib.sha256(vector[::SAMPLE_EVERY].contiguous().numpy().tobytes()).hexdigest()[:16]
    say(at=ended, seconds=ended - began, group=group, state=state)


def gloo(first: str, number: int, num_peers: int, vector: torch.Tensor) -> None:
    """For ever."""
    import torch.distributed as dist

    patience = timedelta(seconds=PATIENCE_S)
    store = dist.TCPStore(first, PORT, None, number == 0, patience, wait_for_workers=False)

    def join(generation: int) -> None:
        rank = store.add(f"{generation}/ranks", 1) - 1
        place = dist.PrefixStore(f"{generation}", store)
        dist.init_process_group("gloo", store=place, rank=rank, world_size=num_peers - generation, timeout=patience)

    generation = 0
    say(reached_at="")
    sys.stdin.readline()
    join(generation)
    while True:
        vector += number
        began = time.time()
        try:
            dist.all_reduce(vector)
        except RuntimeError:  # gloo's word for a neighbour that is gone
            told(began, 0, vector)
            dist.destroy_process_group()
            generation += 1
            join(generation)
            continue
        vector /= num_peers - generation
        told(began, num_peers - generation, vector)


def hivemind(address: str, first: str, number: int, num_peers: int, is_new: bool, vector: torch.Tensor) -> None:
    """For ever."""
    from hivemind import DHT
    from hivemind.averaging import DecentralizedAverager
    from hivemind.averaging.allreduce import AllreduceException
    from hivemind.averaging.matchmaking import MatchmakingException

    initial = [first] if first.startswith("/") else []
    dht = DHT(initial_peers=initial, host_maddrs=[f"/ip4/{address}/tcp/{PORT}"], start=True)
    averager = DecentralizedAverager(
        [vector], dht, start=True, prefix="bench", target_group_size=num_peers,
        allreduce_timeout=STEP_S, next_chunk_timeout=CHUNK_S,
    )  # fmt: skip
    say(reached_at=str(dht.get_visible_maddrs()[0]))
    sys.stdin.readline()
    if is_new:
        averager.load_state_from_peers(timeout=STEP_S)
    while True:
        with averager.get_tensors() as (averaged,):
            averaged += number
        began = time.time()
        try:
            found = averager.step(timeout=STEP_S)
        except (AllreduceException, MatchmakingException, TimeoutError):
            found = None
        with averager.get_tensors() as (averaged,):
            told(began, len(found) if found is not None else 0, averaged)


def torchft(address: str, first: str, number: int, num_peers: int, vector: torch.Tensor) -> None:
    """For ever."""
    # Not installed where the checks of types are made, but in a place of its own (Makefile).
    coordination = importlib.import_module("torchft.coordination")
    library = importlib.import_module("torchft")
    socket.gethostname = lambda: address  # where it says that its state is: names of hosts lead nowhere here
    lighthouse = None  # it ends with the last name that it has
    if number == 0:
        lighthouse = coordination.LighthouseServer(
            f"0.0.0.0:{LIGHTHOUSE_PORT}", min_replicas=num_peers - 1, quorum_tick_ms=TICK_MS, join_timeout_ms=JOIN_MS
        )
    store = torch.distributed.TCPStore(address, PORT, is_master=True, wait_for_workers=False)
    patience = timedelta(seconds=STEP_S)
    manager = library.Manager(
        pg=library.ProcessGroupGloo(timeout=patience),
        load_state_dict=lambda found: vector.copy_(found["vector"]),
        state_dict=lambda: {"vector": vector},
        min_replica_size=num_peers - 1, timeout=patience, quorum_timeout=patience, connect_timeout=patience,
        rank=0, world_size=1, store_addr=address, store_port=store.port, hostname=address,
        lighthouse_addr=f"http://{first or address}:{LIGHTHOUSE_PORT}", replica_id=f"peer{number}", init_sync=False,
    )  # fmt: skip
    say(reached_at="")  # its heart beats: the first quorum waits for it
    sys.stdin.readline()
    while lighthouse is not None or number:
        vector += number
        began = time.time()
        try:
            manager.start_quorum()
            manager.allreduce(vector).wait()
            is_committed = manager.should_commit()
        except (RuntimeError, TimeoutError) as error:
            sys.stderr.write(f"{error}\n")
            is_committed = False
        told(began, manager.num_participants() if is_committed else 0, vector)


def main() -> None:
    way, address, first, *numbers = sys.argv[1:]
    number, most, founders, elements = map(int, numbers)
    torch.set_num_threads(1)
    vector = torch.randn(elements)
    if way == "gloo":
        gloo(first, number, founders, vector)
    elif way == "torchft":
        torchft(address, first, number, founders, vector)
    else:
        hivemind(address, first, number, most, number >= founders, vector)


if __name__ == "__main__":
    main()
