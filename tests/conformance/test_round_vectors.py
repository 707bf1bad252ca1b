"""protocol/vectors/rounds.json played to the real round machine, with real keys and messages (chapters 06, 07)."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dilocoxd.daemon.round.signing import vote_keys
from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced, SegmentReceived
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce, SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, SegmentKey
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits, VoteKeys
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.swarm.discovery.identity import Identity, _wrap_protobuf, load
from dilocoxd.wire.codec import decode_struct
from dilocoxd.wire.entry import Contribution, Signature, SignedVote, VoteFor, entry_hash, vote_text
from dilocoxd.wire.messages import PEER_MESSAGES, Ready
from tests.conformance.vectors import VECTORS, loaded

LOADED: dict[str, Any] = loaded("rounds")
RUN_ID = RunId(LOADED["run_id"])
GENESIS = Digest(bytes.fromhex(LOADED["genesis"]))
SHAPE = PayloadShape(1, tuple(LOADED["segment_bytes"]))


def private_key(row: dict[str, Any]) -> bytes:
    """The key file of one published key pair."""
    n, exponent, secret = int(row["modulus"], 16), row["exponent"], int(row["secret"], 16)
    p, q = rsa.rsa_recover_prime_factors(n, exponent, secret)
    parts = (rsa.rsa_crt_dmp1(secret, p), rsa.rsa_crt_dmq1(secret, q), rsa.rsa_crt_iqmp(p, q))
    key = rsa.RSAPrivateNumbers(p, q, secret, *parts, rsa.RSAPublicNumbers(exponent, n)).private_key()
    der = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return _wrap_protobuf(der)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("keys")
    found = {}
    for index, row in enumerate(tomllib.loads((VECTORS / "keys.toml").read_text(encoding="utf-8"))["keys"]):
        path = folder / str(index)
        path.write_bytes(private_key(row))
        path.chmod(0o600)
        identity = load(path)
        found[str(identity.peer_id)] = identity
    return found


def keys_of(identity: Identity) -> VoteKeys:
    """The daemon's keys, with the clock of the transcripts."""

    def sign(what: VoteFor) -> SignedVote:
        signature = Signature(identity.public_key_der, identity.sign(vote_text(GENESIS, what, LOADED["unix_ms"])))
        return SignedVote(identity.peer_id, what.attempt, LOADED["unix_ms"], signature)

    return VoteKeys(GENESIS, sign, vote_keys(identity, GENESIS).verify)


def event_of(step: dict[str, Any]) -> e.Event:
    """The machine's event for one step of a transcript."""
    attempt = Attempt(step.get("attempt", 0))
    match step:
        case {"start": True}:
            return e.Started()
        case {"peers": peers}:
            views = (PeerView(PeerId(p["peer"]), p["live"], True, RoundIndex(0), GENESIS) for p in peers)
            return e.PeersChanged(tuple(views), is_training=True)
        case {"from": peer, "message": data}:
            return e.MessageReceived(PeerId(peer), PEER_MESSAGES.decode(bytes.fromhex(data)))  # type: ignore[arg-type]
        case {"offer": data, "signature": signature, "segments": segments}:
            made = decode_struct(Contribution, bytes.fromhex(data), size_max=4096)
            signed = decode_struct(Signature, bytes.fromhex(signature), size_max=4096)
            return e.PhaseOffered(made, tuple(Digest(bytes.fromhex(s)) for s in segments), signed)
        case {"segment_from": peer, "kind": kind, "segment": segment, "sha256": digest}:
            phase = PhaseId(0) if kind == KIND_CONTRIBUTION else None
            key = SegmentKey(kind, RoundIndex(0), attempt, 0, segment, phase)
            return SegmentReceived(PeerId(peer), key, Digest(bytes.fromhex(digest)))
        case {"reduced": segment, "sha256": digest}:
            return Reduced(RoundIndex(0), attempt, 0, segment, Digest(bytes.fromhex(digest)))
        case {"persisted": index}:
            return e.EntryPersisted(RoundIndex(index))
        case {"applied": index, "state_digest": digest}:
            return e.EntryApplied(RoundIndex(index), Digest(bytes.fromhex(digest)))
    raise AssertionError(f"step without a meaning: {step}")


def short(digest: bytes) -> str:
    return digest.hex()[:16]


def done(command: c.Command) -> list[str]:
    """A command in the words of the transcripts; nothing for messages."""
    match command:
        case SendSegment():
            return [f"push {('share', 'result')[command.key.kind]} {command.key.segment} to {command.peer}"]
        case OrderReduce():
            return [f"reduce {command.segment}: {' '.join(command.peers)}"]
        case c.PersistPromise(promise):
            voted = "" if promise.entry is None else f", vote {short(entry_hash(promise.entry))}"
            later = f" of attempt {promise.voted_attempt}" if voted and promise.voted_attempt else ""
            return [f"promise {promise.attempt}{voted}{later}"]
        case c.PersistEntry(signed):
            return [f"persist {short(entry_hash(signed.entry))} with votes {' '.join(v.peer for v in signed.votes)}"]
        case c.AbandonContribution():
            return [f"settle phase {command.phase} included False"]
        case c.ApplyEntry(round_index, _, settle):
            return [*([f"settle phase {settle.phase} included True"] if settle else []), f"apply {round_index}"]
        case c.RoundFinished():
            return [f"finished {command.summary.round}"]
        case c.ReportPeer():
            return [f"report {command.peer}"]
        case c.AttemptFailed():
            return [f"failed {command.attempt}"]
        case CancelTransfers():
            return [f"cancel below {command.attempt}"] if command.attempt else []
    return []


def sent(command: c.Command) -> tuple[str, str] | None:
    """(receiver, message in hex) of a message other than Ready."""
    if not isinstance(command, c.Send | c.Broadcast) or isinstance(command.message, Ready):
        return None
    return ("*" if isinstance(command, c.Broadcast) else command.peer, PEER_MESSAGES.encode(command.message).hex())


@pytest.mark.parametrize("row", LOADED["transcripts"], ids=lambda row: row["name"].replace(" ", "_"))
def test_peer_does_what_the_transcript_says(row: dict[str, Any], identities: dict[str, Identity]) -> None:
    identity = identities[row["subject"]]
    site = Ourselves(identity.peer_id, RUN_ID, GENESIS, keys_of(identity))
    limits = RoundLimits(**LOADED["caps"])
    state = Digest(bytes.fromhex(LOADED["state_digest"]))
    chain = ChainView(RUN_ID, RoundIndex(0), GENESIS, state, inner_steps=LOADED["inner_steps"])
    machine = RoundMachine(site, SHAPE, limits, chain)
    for number, step in enumerate(row["steps"]):
        commands = machine.handle(event_of(step["event"]), now=Monotonic(number / 100))
        # That the own worker finds the results decodable is between the two; the transcripts know nothing of it.
        checks = [command for command in commands if isinstance(command, OrderPass)]
        for check in checks:
            sound = PassPrepared(check.round, check.attempt, check.pass_index, ())
            commands += machine.handle(sound, now=Monotonic(number / 100))
        machine.check()
        where = f"step {number}: {json.dumps(step['event'])[:200]}"
        assert [list(found) for command in commands if (found := sent(command))] == step["sends"], where
        assert [line for command in commands for line in done(command)] == step["does"], where


def test_transcripts_end_in_rules_of_the_chapter() -> None:
    assert all(row["rules"] for row in LOADED["transcripts"])
    assert len(LOADED["transcripts"]) >= 15
