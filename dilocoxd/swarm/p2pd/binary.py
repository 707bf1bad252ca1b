"""Is p2pd the program that was tested? It speaks to strangers, and comes as a binary inside another package."""

import platform
from functools import lru_cache
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError
from dilocoxd.store.file_hash import file_sha256

TESTED: Final = {"x86_64": "42f8f48e62583b97cdba3c31439c08029fb2b9fc506b5bdd82c46b7cc1d279d8"}
"""Machine -> sha256 of the p2pd of the hivemind that constraints.txt names. Others are not known, and not checked."""


@lru_cache(maxsize=4)
def _sha256(path: Path, size: int, changed_ns: int) -> str:
    return file_sha256(path).hex()


def check_binary(path: Path, machine: str = "") -> None:
    """Blocks for some tens of milliseconds, once. Raises ConfigError if it is another program."""
    wanted = TESTED.get(machine or platform.machine())
    if wanted is None:
        return
    try:
        status = path.stat()
        found = _sha256(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"p2pd at {path} cannot be read ({error.strerror}); install hivemind again") from error
    if found != wanted:
        raise ConfigError(
            f"p2pd at {path} has the sha256 {found[:16]}..., and {wanted[:16]}... was tested; install the hivemind that"
            " constraints.txt names again"
        )
