"""protocol/registry.toml and the implementation agree: numbers, order of fields, types, ranges, codes, limits."""

import ast
import dataclasses
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.wire import admission, audit, authorities, entry, join_link, messages, records
from dilocoxd.wire.codec import Bounds, Length
from dilocoxd.wire.messages import PEER_MESSAGES

ROOT = Path(__file__).resolve().parents[2]
REGISTRY: dict[str, Any] = tomllib.loads((ROOT / "protocol" / "registry.toml").read_text(encoding="utf-8"))
STRUCTS = (
    *(entry.Contribution, entry.Signature, entry.VotedEntry, entry.Evidence, entry.Entry),
    *(entry.VoteFor, entry.SignedVote, entry.SignedEntry, messages.Lock),
    *(audit.ShareProof, audit.SumProof, messages.NodePort),
)
ADMISSION = (
    admission.AuthoritySignature,
    admission.InviteTerms,
    admission.InviteCertificate,
    admission.MembershipProof,
    admission.RevocationTerms,
    admission.Revocation,
    admission.MemberVote,
    authorities.AuthorityTerms,
    authorities.AuthorityChange,
    join_link.InviteToken,
)
RECORDS = (records.PeerRecord, records.SignedRecord, records.PhaseLoss, records.PhaseLosses)
SIGNED = {kind.__name__: kind for kind in (*STRUCTS, *ADMISSION, *RECORDS)}


def type_text(hint: Any) -> str:
    """A type as registry.toml writes it: `int(0..9)`, `bytes(32)`, `list(1..4) of bytes(32)`, `Lock or nil`."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return annotated_text(typing.get_args(hint))
    if origin is tuple:
        return f"list of {type_text(typing.get_args(hint)[0])}"
    if origin is types.UnionType:
        return f"{type_text(typing.get_args(hint)[0])} or nil"
    if hasattr(hint, "__supertype__"):
        return type_text(hint.__supertype__)
    names = {int: "int", str: "text", bytes: "bytes", bool: "bool", float: "float"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def annotated_text(parts: tuple[Any, ...]) -> str:
    base = type_text(parts[0])
    for limit in parts[1:]:
        if isinstance(limit, Bounds):
            base = f"int({limit.low}..{limit.high})"
        elif isinstance(limit, Length):
            size = f"({limit.low})" if limit.low == limit.high else f"({limit.low}..{limit.high})"
            head, _, rest = base.partition(" of ")
            base = f"{head}{size} of {rest}" if rest else f"{head}{size}"
    return base


def fields_of(kind: type) -> list[list[str]]:
    """[[name, type], ...] in the order on the wire."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [[f.name, type_text(hints[f.name])] for f in dataclasses.fields(kind)]


CALLS = {"WireError": 0, "refuse": 0, "Violation": 1, "ReportPeer": 1, "count_bad": 1}
"""Calls that name a code, and in which place."""


def raised_codes() -> set[str]:
    """Every code that something is refused or counted with, as far as it stands there or in a constant."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "dilocoxd").rglob("*.py")]
    constants = {
        ast.unparse(node.target): node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant)
    }
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        place = CALLS.get(ast.unparse(node.func).rpartition(".")[2])
        if place is None or len(node.args) <= place:
            continue
        named = node.args[place]
        for code in (named.body, named.orelse) if isinstance(named, ast.IfExp) else (named,):
            value = code.value if isinstance(code, ast.Constant) else constants.get(ast.unparse(code))
            if isinstance(value, str):
                found.add(value)
    return found


def test_registry_names_every_message_and_no_other() -> None:
    numbers = {name: table["number"] for name, table in REGISTRY["messages"].items()}
    assert numbers == {kind.__name__: number for number, kind in PEER_MESSAGES.by_number.items()}


@pytest.mark.parametrize("kind", PEER_MESSAGES.by_type, ids=lambda kind: kind.__name__)
def test_message_has_the_fields_of_the_registry(kind: type) -> None:
    assert REGISTRY["messages"][kind.__name__]["fields"] == fields_of(kind)


def test_registry_names_every_struct_and_no_other() -> None:
    assert set(REGISTRY["structs"]) == set(SIGNED)


@pytest.mark.parametrize("name", SIGNED)
def test_struct_has_the_fields_of_the_registry(name: str) -> None:
    assert REGISTRY["structs"][name]["fields"] == fields_of(SIGNED[name])


def test_every_code_that_is_raised_is_registered() -> None:
    found = raised_codes()
    assert {"not_yet", "double_vote", "store"} <= found
    missing = found - set(REGISTRY["codes"])
    assert not missing, f"add to protocol/registry.toml [codes] with a meaning: {sorted(missing)}"


def test_limits_and_version() -> None:
    assert REGISTRY["protocol"] == {"major": messages.PROTOCOL_MAJOR, "minor": messages.PROTOCOL_MINOR}
    assert REGISTRY["limits"] == {
        "message_bytes_max": messages.MESSAGE_BYTES_MAX,
        "record_bytes_max": messages.RECORD_BYTES_MAX,
        "entry_bytes_max": entry.ENTRY_BYTES_MAX,
        "contributors_max": entry.CONTRIBUTORS_MAX,
        "membership_bytes_max": admission.MEMBERSHIP_BYTES_MAX,
        "revocation_bytes_max": admission.REVOCATION_BYTES_MAX,
    }
