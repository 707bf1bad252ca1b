"""Files of a run directory that say who this site is to the run, and who may invite. Secrets have mode 0600.

`authority.key`: seeds of Ed25519 keys in hex, one in a line. `invite`: base58, as in a link. `membership`: hex.
`checkpoint`: height and chain head in hex. `members.json` is the daemon's; commands read the authorities in it.
"""

import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError, WireError, reason_of
from dilocoxd.ids import Digest
from dilocoxd.store.durable import write_file, write_json
from dilocoxd.wire.authorities import AuthorityChange, decode_change
from dilocoxd.wire.codec import encode_struct

ADMIT_AGAIN: Final = "remove it and start again where the authority's key is, else join again with a new link"
"""What to do about a membership that cannot be used: a founder has nobody to join through."""


def write_secret(path: Path, text: str) -> None:
    """Replace `path` by one that only its owner reads, atomically and durably. Raises StoreError."""
    write_file(path, text.encode("ascii") + b"\n", mode=0o600)


def read_secret(path: Path) -> str:
    """What `write_secret` wrote; empty if there is none. Raises ConfigError if others could read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({reason_of(error)}); restore it from a backup") from error
    if mode & 0o077:
        raise ConfigError(f"{path} has mode {mode:04o}, others could read it; run: chmod 600 {path}")
    return text


def read_membership(path: Path) -> bytes:
    """The encoded membership; empty if there is none. Raises ConfigError."""
    try:
        return bytes.fromhex(read_secret(path))
    except ValueError as error:
        raise ConfigError(f"{path}: is damaged ({error}); {ADMIT_AGAIN}") from error


def read_authorities(path: Path) -> tuple[tuple[AuthorityChange, ...], bytes]:
    """The changes of authorities that `members.json` holds, and the hash of the one in force; empty: none is.

    Raises ConfigError.
    """
    try:
        table = json.loads(path.read_text("ascii"))
        changes = tuple(decode_change(bytes.fromhex(text)) for text in table.get("authorities", ()))
        return changes, bytes.fromhex((table.get("authorities_in_force") or [""])[-1])
    except FileNotFoundError:
        return (), b""
    except (OSError, ValueError, TypeError, AttributeError, WireError) as error:
        raise ConfigError(
            f"{path}: is damaged ({reason_of(error)}); remove it, the others tell what was in it"
        ) from error


def write_authorities(path: Path, changes: Iterable[AuthorityChange], in_force: Iterable[bytes]) -> None:
    """Put them into `members.json`, beside what is there. Raises ConfigError, StoreError."""
    try:
        table = json.loads(path.read_text("ascii")) if path.exists() else {"members": [], "revocations": []}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: is damaged ({reason_of(error)}); remove it, the others tell what was in it"
        ) from error
    table["authorities"] = [encode_struct(one).hex() for one in changes]
    table["authorities_in_force"] = [one.hex() for one in in_force]
    write_json(path, table)


def write_checkpoint(path: Path, height: int, head: Digest) -> None:
    """Remember which chain the link named. Raises StoreError."""
    write_secret(path, f"{height} {head.hex()}")


def read_checkpoint(path: Path, remedy: str = "join again with the link, or remove it") -> tuple[int, Digest] | None:
    """Height and chain head; None: there are none, such as where a site joined without a link. Raises ConfigError."""
    text = read_secret(path)
    if not text:
        return None
    try:
        height, head = text.split()
        return int(height), Digest(bytes.fromhex(head))
    except ValueError as error:
        raise ConfigError(f"{path}: is damaged ({error}); {remedy}") from error
