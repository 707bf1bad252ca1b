"""Numbers that a rule of protocol/ states are the numbers of the code, and what is beyond them is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hivemind.proto import dht_pb2

from dilocoxd.compress.registry import codec_from_name
from dilocoxd.daemon.peers import port_book
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery import contacts, decisions, gossip
from dilocoxd.swarm.p2pd import fence
from dilocoxd.swarm.streams import budget
from dilocoxd.wire import entry, messages, records

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB, DAY_MS = 1024, 1 << 20, 24 * 3600 * 1000


def first_chunk(codec: str) -> int:
    """Values in the first chunk of a long share."""
    start, stop = next(iter(codec_from_name(codec).chunks(1 << 20)))
    return stop - start


STATED = {
    "E5. A receiver MUST bound memory before it parses: a message is at most 1 MiB, a record 8 KiB, an entry 8 MiB": (
        (messages.MESSAGE_BYTES_MAX, 1 * MIB),
        (messages.RECORD_BYTES_MAX, 8 * KIB),
        (entry.ENTRY_BYTES_MAX, 8 * MIB),
    ),
    "with pauses of 2 s to 60 s": ((contacts.RETRY_FIRST_S, 2.0), (contacts.RETRY_MAX_S, 60.0)),
    "has not been heard of for a day, is not dialled": ((contacts.FORGET_AFTER_MS, DAY_MS),),
    "D5. Heartbeat: a new record every 3 s": ((gossip.HEARTBEAT_S, 3.0),),
    "`ttl_ms` is 30000": ((gossip.RECORD_TTL_MS, 30_000),),
    "D6. Exchange: every 5 s, and at each new contact, a call `Records(reply = true)` with up to 64 records": (
        (gossip.EXCHANGE_S, 5.0),
        (gossip.RECORDS_PER_MESSAGE, 64),
    ),
    "a DHT request with more than 4 keys or more than 64 KiB": (
        (fence.KEYS_MAX, 4),
        (fence.REQUEST_BYTES_MAX, 64 * KIB),
    ),
    "at most 4 requests a second of one peer (40 at once) and 50 of all peers together (400 at once)": (
        (fence.EACH.per_s, 4.0),
        (fence.EACH.burst, 40.0),
        (fence.TOTAL.per_s, 50.0),
        (fence.TOTAL.burst, 400.0),
    ),
    "32 a second of a peer (2048 at once), 64 of a network (4096 at once), 128 of all (8192 at once); four pieces": (
        (budget.EMPTY_EACH, budget.Rate(32.0, 2048.0)),
        (budget.EMPTY_NETWORK, budget.Rate(64.0, 4096.0)),
        (budget.EMPTY_TOTAL, budget.Rate(128.0, 8192.0)),
        (4 * budget.PIECE_COST, 1.0),
    ),
    "one peer at most once a minute (4 times at once)": (
        (decisions.TELL_ALL.per_s, 1 / 60),
        (decisions.TELL_ALL.burst, 4),
    ),
    "It uses 1024 ports at most: where more are named": ((port_book.PORTS_MAX, 1024),),
    "the next exchange of that peer waits, 5 s at most": ((budget.EMPTY_WAIT_S_MAX, 5.0),),
    "pays for four that bring nothing, for 8192 at most": ((budget.CREDIT_EACH, 4.0), (budget.CREDIT_MAX, 8192.0)),
    "have 524,288 values, of `fp32`, `fp16`, `bf16` and `topk` 262,144, of `int2`, `e3m0` and `int8bins` 131,072": (
        *((first_chunk(name), 524_288) for name in ("int4", "int8")),
        *((first_chunk(name), 262_144) for name in ("fp32", "fp16", "bf16", "topk")),
        *((first_chunk(name), 131_072) for name in ("int2", "e3m0", "int8bins")),
    ),
}


@pytest.mark.parametrize("sentence", STATED)
def test_number_of_a_rule_is_that_of_the_code(sentence: str) -> None:
    chapters = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "protocol").glob("0*.md")))
    assert sentence in re.sub(r"\s+", " ", chapters), "the rule says something else now: change code and this row"
    assert all(found == wanted for found, wanted in STATED[sentence])


@pytest.mark.parametrize(
    ("decode", "size_max"),
    [
        (messages.PEER_MESSAGES.decode, messages.MESSAGE_BYTES_MAX),
        (records.decode_signed, messages.RECORD_BYTES_MAX),
        (entry.decode_entry, entry.ENTRY_BYTES_MAX),
    ],
    ids=["message", "record", "entry"],
)
def test_what_is_too_large_is_refused_before_it_is_parsed(decode: Callable[[bytes], object], size_max: int) -> None:
    for size, code in ((size_max + 1, "too_large"), (size_max, "malformed")):
        with pytest.raises(WireError) as caught:
            decode(b"\xc1" * size)
        assert caught.value.code == code


def test_dht_answers_so_much_to_one_peer_and_so_much_to_all() -> None:
    now = [100.0]
    judge = fence.DhtFence(lambda: now[0], lambda peer: True)

    def answered(*peers: str) -> int:
        count = 0
        for peer in peers:
            try:
                judge.check(PeerId(peer), dht_pb2.PingRequest())
            except WireError as refused:
                assert refused.code == "busy"
            else:
                count += 1
        return count

    assert answered(*["a"] * 100) == 40
    assert answered(*(f"p{index}" for index in range(1000))) == 400 - 40
    now[0] += 1.0
    assert answered(*["a"] * 100) == 4
    assert answered(*(f"q{index}" for index in range(1000))) == 50 - 4


@pytest.mark.parametrize(("num_keys", "value_bytes"), [(5, 0), (1, 64 * KIB)], ids=["keys", "bytes"])
def test_dht_request_beyond_its_limits_is_refused_and_one_at_them_is_not(num_keys: int, value_bytes: int) -> None:
    judge = fence.DhtFence(lambda: 100.0, lambda peer: True)
    judge.check(PeerId("a"), dht_pb2.StoreRequest(keys=[b"k" * 20] * 4, values=[bytes(60 * KIB)]))
    with pytest.raises(WireError) as caught:
        judge.check(PeerId("a"), dht_pb2.StoreRequest(keys=[b"k" * 20] * num_keys, values=[bytes(value_bytes)]))
    assert caught.value.code == "too_large"
