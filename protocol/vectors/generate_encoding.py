"""Golden vectors of chapter 02, and of L20: `python generate_encoding.py > encoding.json` in protocol/vectors.

For every message of registry.toml: one with the smallest and one with larger values, and one broken in each way that
its field types allow. Written from chapter and registry, without dilocoxd.
"""

import json
import re
import sys

from canonical import REGISTRY, pack, plain

STRUCTS, MESSAGES, LIMITS = REGISTRY["structs"], REGISTRY["messages"], REGISTRY["limits"]
TYPE = re.compile(r"(?P<base>\w+)(\((?P<low>-?\d+)(\.\.(?P<high>\d+))?\))?( of (?P<item>.+?))?( or nil)?")


def parsed(text):
    found = TYPE.fullmatch(text)
    low = int(found["low"] or 0)
    return found["base"], low, int(found["high"] or low), found["item"], text.endswith(" or nil")


def value_of(text, small):
    """A value of this type: the smallest one, or one that needs longer forms."""
    base, low, high, item, optional = parsed(text)
    if small and optional:
        return None
    if base == "int":
        return low if small else min(high, 70_000)
    if base == "bool":
        return not small
    if base == "bytes":
        return bytes([0x41]) * (low if small else min(high, max(low, 300)))
    if base == "text":
        return "x" * (low if small else min(high, 40))
    if base == "list":
        return [value_of(item, small)] * (low if small else min(high, max(low, 2)))
    return [value_of(kind, small) for _, kind in STRUCTS[base]["fields"]]


def wrong_values(text):
    """(what is wrong, value) for one field."""
    base = parsed(text)[0]
    if base in STRUCTS:
        fields = [value_of(kind, True) for _, kind in STRUCTS[base]["fields"]]
        yield "field missing", fields[:-1]
        yield "field too many", [*fields, 0]
        for position, (name, kind) in enumerate(STRUCTS[base]["fields"]):
            for what, value in wrong_values(kind):
                yield f"{name}: {what}", [*fields[:position], value, *fields[position + 1 :]]
    else:
        yield from wrong_simple(text)
    if not text.endswith(" or nil"):
        yield "nil", None


def wrong_simple(text):
    base, low, high, item, _ = parsed(text)
    if base == "int":
        yield "below range", low - 1
        yield "above range", high + 1
        yield "boolean for integer", True
        yield "text for integer", "1"
    elif base == "bool":
        yield "integer for boolean", 1
    elif base in ("bytes", "text"):
        unit = b"\0" if base == "bytes" else "x"
        if low:
            yield "too short", unit * (low - 1)
        yield "too long", unit * (high + 1)
        yield "other kind of string", "x" * max(low, 1) if base == "bytes" else b"x" * max(low, 1)
    elif base == "list":
        if low:
            yield "too few", [value_of(item, True)] * (low - 1)
        if high <= 1024:
            yield "too many", [value_of(item, True)] * (high + 1)
        yield "number for array", 7


def valid_messages():
    for name, message in MESSAGES.items():
        for small in (True, False):
            fields = [value_of(kind, small) for _, kind in message["fields"]]
            encoded = pack([message["number"], *fields])
            yield {"message": name, "fields": plain(fields), "bytes": encoded.hex()}


def broken_messages():
    for name, message in MESSAGES.items():
        number, kinds = message["number"], message["fields"]
        fields = [value_of(kind, True) for _, kind in kinds]
        good = pack([number, *fields])
        broken = {
            "field missing": pack([number, *fields[:-1]]),
            "field too many": pack([number, *fields, 0]),
            "bytes after the value": good + b"\0",
            "cut": good[:-1],
            "longer array header": b"\xdc\x00" + bytes([len(fields) + 1]) + good[1:],
            "longer number": good[:1] + b"\xcc" + good[1:],
        }
        for position, (field, kind) in enumerate(kinds):
            for what, value in wrong_values(kind):
                broken[f"{field}: {what}"] = pack([number, *fields[:position], value, *fields[position + 1 :]])
        for what, data in broken.items():
            code = "too_large" if len(data) > LIMITS["message_bytes_max"] else "malformed"
            yield {"message": name, "broken": what, "code": code, "bytes": data.hex()}


def broken_bytes():
    yield "nothing", b"", "malformed"
    yield "empty array", b"\x90", "malformed"
    yield "map", b"\x80", "malformed"
    yield "map with message number", b"\x81\x02\x00", "malformed"
    yield "extension type", b"\x92\x02\xd4\x01\x00", "malformed"
    yield "float", b"\x93\x1e\xcb" + bytes(8) + b"\xc4\x20" + bytes(32), "malformed"
    yield "text that is not UTF-8", b"\x94\x04\xa1\xff\xa0\xc4\x00", "malformed"
    for name, mark in (("line break", "\n"), ("escape", "\x1b"), ("C1 control", "\x9b"), ("right-to-left", "\u202e")):
        yield f"text with a control character: {name}", pack([4, "busy", f"one{mark}two", b""]), "malformed"
    yield "name with a control character", pack([4, "bu\x00sy", "", b""]), "malformed"
    yield "number is text", pack(["2"]), "malformed"
    yield "number is a boolean", pack([True]), "malformed"
    yield "array header without elements", b"\xdd\xff\xff\xff\xff", "malformed"
    yield "byte string longer than the bytes", b"\x92\x02\xc6\xff\xff\xff\xff", "malformed"
    yield "nesting", b"\x91" * 2000 + b"\x90", "malformed"
    yield "unknown mandatory number", pack([998, 1]), "unknown_message"
    yield "unknown mandatory number without fields", pack([1000]), "unknown_message"


def losses(pairs):
    """L20: the bytes of PhaseLosses."""
    return pack([[[phase, micro] for phase, micro in pairs]])


def valid_losses():
    """(phase that was asked for, pairs of a phase and its loss in millionths)."""
    yield 0, []
    yield 0, [[0, 0]]
    yield 7, [[7, 2_931_415], [8, 2_900_000], [12, 1_000_000_000]]
    yield 2**63 - 1, [[2**63 - 1, 1]]
    yield 3, [[3 + 2 * index, 3_000_000 - index] for index in range(1024)]


def broken_losses():
    """(what is wrong, phase that was asked for, code, bytes)."""
    good = losses([[7, 2_931_415], [8, 2_900_000]])
    yield "nothing", 7, "malformed", b""
    yield "cut", 7, "malformed", good[:-1]
    yield "bytes after it", 7, "malformed", good + b"\0"
    yield "a phase below the one that was asked for", 8, "malformed", good
    yield "a phase twice", 7, "malformed", losses([[7, 1], [7, 2]])
    yield "phases that descend", 7, "malformed", losses([[8, 1], [7, 2]])
    yield "a loss above 1000", 7, "malformed", losses([[7, 1_000_000_001]])
    yield "a loss below zero", 7, "malformed", losses([[7, -1]])
    yield "a phase below zero", 0, "malformed", losses([[-1, 1]])
    yield "text for a loss", 7, "malformed", losses([[7, "2.9"]])
    yield "a float for a loss", 7, "malformed", b"\x91\x91\x92\x07\xcb" + bytes(8)
    yield "a boolean for a phase", 0, "malformed", losses([[True, 1]])
    yield "an item with a field too many", 7, "malformed", pack([[[7, 1, 0]]])
    yield "an item with a field missing", 7, "malformed", pack([[[7]]])
    yield "a field too many", 7, "malformed", pack([[[7, 1]], 0])
    yield "a field missing", 7, "malformed", pack([])
    yield "a map", 7, "malformed", b"\x81" + good[1:]
    yield "a longer number", 7, "malformed", b"\x91\x91\x92\xcc\x07\x01"
    yield "1025 phases", 0, "malformed", losses([[phase, 1] for phase in range(1025)])
    yield "more than 16 KiB", 0, "too_large", losses([[2**62 + phase, 10**9] for phase in range(1100)])


def ports(*of):
    """S12: the bytes of DataPorts."""
    return pack([53, [[first, stop, port, list(hosts)] for first, stop, port, *hosts in of]])


def valid_ports():
    yield ports()
    yield ports((0, 1, 1, "192.0.2.7"))
    yield ports((0, 3, 31341, "192.0.2.7", "2001:db8::7"), (3, 4, 31341, "192.0.2.8"), (9, 65536, 65535, "::1"))


def broken_ports():
    yield "no segments", ports((3, 3, 31341, "192.0.2.7"))
    yield "segments that descend", ports((3, 2, 31341, "192.0.2.7"))
    yield "a segment at two ports", ports((0, 3, 31341, "192.0.2.7"), (2, 4, 31341, "192.0.2.8"))
    yield "ports that do not ascend", ports((3, 4, 31341, "192.0.2.7"), (0, 3, 31341, "192.0.2.8"))
    yield "the same one twice", ports((0, 3, 31341, "192.0.2.7"), (0, 3, 31341, "192.0.2.7"))
    yield "a name for a host", ports((0, 3, 31341, "node.example"))
    yield "a second host that is none", ports((0, 3, 31341, "192.0.2.7", "192.0.2"))
    yield "an address of a single link", ports((0, 3, 31341, "fe80::1%eth0"))
    yield "an address with a port", ports((0, 3, 31341, "192.0.2.7:31341"))


def main():
    rows = [{"broken": what, "code": code, "bytes": data.hex()} for what, data, code in broken_bytes()]
    small = [row for row in broken_messages() if len(row["bytes"]) <= 40_000]
    ignored = [pack([number, *rest]).hex() for number, rest in ((1, []), (33, ["later"]), (1001, [None, [1, 2]]))]
    document = {
        "chapter": "02-encoding",
        "valid": list(valid_messages()),
        "failing": rows + small,
        "ignored": ignored,
        "ports": [data.hex() for data in valid_ports()],
        "broken_ports": [{"broken": what, "bytes": data.hex()} for what, data in broken_ports()],
        "losses": [{"first": first, "pairs": pairs, "bytes": losses(pairs).hex()} for first, pairs in valid_losses()],
        "broken_losses": [
            {"broken": what, "first": first, "code": code, "bytes": data.hex()}
            for what, first, code, data in broken_losses()
        ],
    }
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
