"""Which part of a corpus is used, and which part of that is held out: whole chunks, spread evenly over the text."""

from __future__ import annotations

from typing import Final

CHUNK_CHARS_MAX: Final = 32768
CHUNK_CHARS_MIN: Final = 1024
_CHUNKS_WANTED: Final = 512
"""Small corpora are cut finer, so that their held-out part also comes from many places."""


def chunks_of(text: str, chars_max: int) -> list[str]:
    """Chunks that end at a line end where possible; of a text longer than ``chars_max``, evenly spaced ones.

    ``chars_max`` 0 takes all. A dictionary read from its front would only know words with A.
    """
    used = min(len(text), chars_max) if chars_max else len(text)
    size = min(CHUNK_CHARS_MAX, max(CHUNK_CHARS_MIN, used // _CHUNKS_WANTED))
    chunks: list[str] = []
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + size) + 1
        if end <= start or start + size >= len(text):
            end = min(start + size, len(text))
        chunks.append(text[start:end])
        start = end
    wanted = max(1, min(len(chunks), -(-used // size)))
    if used == len(text):
        return chunks
    return [chunks[index * len(chunks) // wanted] for index in range(wanted)]


def hold_out(chunks: list[str], fraction: float) -> tuple[list[str], list[str]]:
    """(training chunks, held-out chunks): every n-th chunk with n = 1 / fraction, and always at least one."""
    stride = max(2, round(1.0 / fraction))
    if len(chunks) == 1:
        middle = int(len(chunks[0]) * (1.0 - fraction))
        return [chunks[0][:middle]], [chunks[0][middle:]]
    held = {index for index in range(len(chunks)) if index % stride == stride - 1}
    # Of a short text one whole chunk; the last one may be a rest of a few words.
    held = held or {max(range(len(chunks)), key=lambda index: len(chunks[index]))}
    train = [chunk for index, chunk in enumerate(chunks) if index not in held]
    return train, [chunks[index] for index in sorted(held)]
