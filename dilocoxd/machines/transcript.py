"""Bytes of what went into a round machine, so that its life can be played again elsewhere. Pure.

A recording is an `Opening` (what the machine was built from), then for every event an `Input`, written before the
machine handles it (so that the one that breaks it is there), and an `Outcome` after. A machine is deterministic: the
same inputs give the same commands. Signatures are recorded, so nobody needs the private key. Any dataclass of the
modules below is encoded by name and fields; decoding makes nothing else. Source: docs/internals.md section 3.
"""

import dataclasses
import functools
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, Final

import msgpack

from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, Monotonic, PeerId, RunId
from dilocoxd.machines import chain, limits
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange import facts, orders, segments
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits, VoteKeys
from dilocoxd.machines.peers import view
from dilocoxd.machines.round import inputs as events, outputs as commands
from dilocoxd.machines.round.inputs import Event
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outputs import Command, KeptPromise
from dilocoxd.wire import entry, messages
from dilocoxd.wire.entry import Signature, SignedVote, VoteFor

FORMAT: Final = 3
_MODULES: Final[tuple[ModuleType, ...]] = (
    events,
    commands,
    facts,
    orders,
    segments,
    view,
    messages,
    entry,
    chain,
    limits,
)


@dataclass(frozen=True, slots=True)
class Opening:
    """What the machine was built from, without its keys."""

    format: int
    version: str
    """Of dilocoxd: another version may decide otherwise."""
    me: PeerId
    run_id: RunId
    genesis: Digest
    shape: PayloadShape
    limits: RoundLimits
    chain: ChainView
    kept: KeptPromise | None


@dataclass(frozen=True, slots=True)
class Input:
    """One call of `RoundMachine.handle`."""

    now: float
    event: Event


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    fingerprint: int
    """crc32 of the encoded commands."""
    signatures: tuple[SignedVote, ...]
    """Votes that were signed meanwhile, in order."""


Record = Opening | Input | Outcome


@functools.cache
def _kinds() -> dict[str, type]:
    found: dict[str, type] = {kind.__name__: kind for kind in (Opening, Input, Outcome)}
    for module in _MODULES:
        local = {name: kind for name, kind in vars(module).items() if dataclasses.is_dataclass(kind)}
        found.update({name: kind for name, kind in local.items() if isinstance(kind, type)})
    return found


def _tree(value: Any) -> Any:
    """`value` as msgpack types: containers and dataclasses become [tag, ...]."""
    if dataclasses.is_dataclass(value):
        return [type(value).__name__, *(_tree(getattr(value, field.name)) for field in dataclasses.fields(value))]
    if isinstance(value, tuple):
        return ["(", *map(_tree, value)]
    if isinstance(value, frozenset):
        return ["{", *sorted(map(_tree, value))]
    if isinstance(value, Mapping):
        return [":", *([_tree(key), _tree(item)] for key, item in sorted(value.items()))]
    return value


def _value(tree: Any) -> Any:
    if not isinstance(tree, list):
        return tree
    tag, *items = tree
    if tag == "(":
        return tuple(map(_value, items))
    if tag == "{":
        return frozenset(map(_value, items))
    if tag == ":":
        return MappingProxyType({_value(key): _value(item) for key, item in items})
    return _kinds()[tag](*map(_value, items))


def encode(record: Record) -> bytes:
    """Bytes of one record."""
    packed: bytes = msgpack.packb(_tree(record), use_bin_type=True)
    return packed


def decode(data: bytes) -> Record:
    """The record in `data`. Raises StoreError for bytes that are none, or of another format."""
    try:
        record = _value(msgpack.unpackb(data, raw=False))
    except (ValueError, KeyError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise StoreError(f"a record of the recording does not decode ({type(error).__name__}: {error})") from error
    if not isinstance(record, Opening | Input | Outcome):
        raise StoreError("the recording holds something else than openings, inputs and outcomes")
    if isinstance(record, Opening) and record.format != FORMAT:
        raise StoreError(f"the recording has format {record.format}, this version reads {FORMAT}")
    return record


def fingerprint(ordered: Sequence[Command]) -> int:
    """Equal for equal commands."""
    return zlib.crc32(msgpack.packb([_tree(command) for command in ordered], use_bin_type=True))


def recording_keys(keys: VoteKeys, signed: Callable[[SignedVote], None]) -> VoteKeys:
    """The same keys; `signed` hears of every vote that they sign."""

    def sign(what: VoteFor) -> SignedVote:
        vote = keys.sign(what)
        signed(vote)
        return vote

    return VoteKeys(keys.run, sign, keys.verify)


class Player:
    """A machine that lives a recorded life again. `verify` checks the votes of others, as the daemon's keys do."""

    def __init__(self, opening: Opening, verify: Callable[[PeerId, Signature, bytes], bool]) -> None:
        self._signatures: deque[SignedVote] = deque()
        self._unsigned = Signature(b"?", b"?")
        self._me = opening.me
        site = Ourselves(opening.me, opening.run_id, opening.genesis, VoteKeys(opening.genesis, self._sign, verify))
        self.machine = RoundMachine(site, opening.shape, opening.limits, opening.chain, opening.kept)

    def _sign(self, what: VoteFor) -> SignedVote:
        if self._signatures:
            return self._signatures.popleft()
        return SignedVote(self._me, what.attempt, 0, self._unsigned)

    def play(self, given: Input, outcome: Outcome | None) -> tuple[list[Command], bool]:
        """(commands, whether they are those of the recording). `outcome` None: the daemon died in this one."""
        self._signatures = deque(outcome.signatures if outcome is not None else ())
        ordered = self.machine.handle(given.event, now=Monotonic(given.now))
        return ordered, outcome is None or fingerprint(ordered) == outcome.fingerprint
