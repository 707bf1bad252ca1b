"""How many segments the messages of a round can name; more are refused before a run begins."""

from typing import Final

from dilocoxd.wire.messages import MESSAGE_BYTES_MAX

SEGMENTS_MAX: Final = 1 << 16
"""Of `Propose.owners` and of the lists of hashes between outer worker and daemon."""
_HASH_BYTES = 34
_ENVELOPE_BYTES = 64
RESULT_HASHES_MAX: Final = min(1 << 15, (MESSAGE_BYTES_MAX - _ENVELOPE_BYTES) // _HASH_BYTES)
"""Results (passes x segments) that one `ResultHashes` holds within the bytes of a message."""
