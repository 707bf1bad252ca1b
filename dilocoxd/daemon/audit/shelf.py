"""What this site shows of results that it has found false: the shares that it summed, with their proofs (rule X14).

`proof/<entry>/<segment>`: a SumProof (wire/audit.py); `proof/<entry>/<segment>/<place>`: the share of the contribution
in this place, as it was signed. The files are those of the evidence that is kept; a restart forgets what is shown, and
others who have checked it show it too.
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest
from dilocoxd.store.audits import share_name
from dilocoxd.wire.audit import ShareProof, SumProof, encode_sum_proof

SHOWN_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class _Shown:
    folder: Path
    proof: bytes
    number: int


class ProofShelf:
    """Of one site; the newest SHOWN_MAX."""

    def __init__(self) -> None:
        self._shown: OrderedDict[tuple[Digest, int], _Shown] = OrderedDict()

    def put(self, entry_hash: Digest, segment: int, folder: Path, shares: tuple[ShareProof, ...]) -> None:
        """Show what lies in `folder` from now on."""
        self._shown[entry_hash, segment] = _Shown(folder, encode_sum_proof(SumProof(shares)), len(shares))
        while len(self._shown) > SHOWN_MAX:
            self._shown.popitem(last=False)

    def proof(self, entry_hash: Digest, segment: int) -> bytes:
        """The SumProof. Raises StoreError."""
        return self._of(entry_hash, segment).proof

    def share(self, entry_hash: Digest, segment: int, place: int) -> Path:
        """File of one share. Raises StoreError."""
        shown = self._of(entry_hash, segment)
        if place >= shown.number:
            raise StoreError(f"the entry has no contribution {place}")
        return shown.folder / share_name(place)

    def _of(self, entry_hash: Digest, segment: int) -> _Shown:
        if (shown := self._shown.get((entry_hash, segment))) is None:
            raise StoreError(f"nothing is shown against segment {segment} of entry {entry_hash.hex()[:16]}")
        return shown
