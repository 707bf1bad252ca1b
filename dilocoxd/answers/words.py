"""Figures for people, the same in every table, line and message. Pure. Units: decimal (kB, MB), as links are sold."""

import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # `--help` breaks its lines by this file, and is there before pydantic would be
    from dilocoxd.answers.progress import RunProgress

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86_400
SHORT_S = 0.05
"""Less would be shown as 0.0 s."""
ABOUT_MIN = 1.8
"""Fewer of a unit are told in the next smaller one: 75 s, not 1 min."""
_UNITS: Final = "B|kB|MB|GB|bit/s|kbit/s|Mbit/s|ms|s|min|h|d|tok/s|x"
_WORD: Final = re.compile(rf"(?:`[^`]*`|[^ `]|`|(?<=\d) (?=(?:{_UNITS})\b))+")
"""What stays on one line: a word, a command between backquotes, blanks included, or a number with its unit."""


def wrapped(text: str, width: int | None, indent: int = 0) -> list[str]:
    """`text` in lines of at most `width` characters, broken at blanks, all but the first one `indent` further right.

    A longer word stays whole, and so does a command between backquotes: they are to be copied. None: one line.

    >>> wrapped("free some disk, then run `dilocoxd run big` again", 24, 2)
    ['free some disk, then run', '  `dilocoxd run big`', '  again']
    """
    if width is None or len(text) <= width:
        return [text]
    begin = text[: len(text) - len(text.lstrip(" "))]
    lines, is_empty = [begin], True
    for word in _WORD.findall(text):
        if not is_empty and len(lines[-1]) + 1 + len(word) > width:
            lines.append(begin + " " * indent + word)
        else:
            lines[-1] += word if is_empty else f" {word}"
        is_empty = False
    return lines


def in_bytes(count: float) -> str:
    """A number of bytes.

    >>> [in_bytes(n) for n in (0, 999, 1536, 12_600_000)]
    ['0 B', '999 B', '1.5 kB', '12.6 MB']
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def in_time(seconds: float | None) -> str:
    """A duration, to two units; a dash while it is not known.

    >>> [in_time(s) for s in (0.008, 0.42, 9.6, 75, 3700, 90_000, 200_000, None)]
    ['8 ms', '0.4 s', '10 s', '1 min 15 s', '1 h 1 min', '25 h', '2 d 7 h', '-']
    """
    if seconds is None:
        return "-"
    if 0.0005 < seconds < SHORT_S:
        return f"{1000 * seconds:.0f} ms"
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s" if seconds < 9.5 else f"{seconds:.0f} s"
    if seconds < HOUR_S:
        return _two_units(seconds, MINUTE_S, "min", 1, "s")
    if seconds < 2 * DAY_S:
        return _two_units(seconds, HOUR_S, "h", MINUTE_S, "min")
    return _two_units(seconds, DAY_S, "d", HOUR_S, "h")


def about(seconds: float) -> str:
    """A duration that is an estimate: one unit, short enough for a line of 80 columns.

    >>> [about(s) for s in (0.42, 9.6, 75, 197, 7500, 200_000)]
    ['0.4 s', '10 s', '75 s', '3 min', '2 h', '2 d']
    """
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= ABOUT_MIN * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return in_time(seconds) if seconds < MINUTE_S else f"{seconds:.0f} s"


def _two_units(seconds: float, large_s: int, large: str, small_s: int, small: str) -> str:
    whole, rest = divmod(int(seconds), large_s)
    return f"{whole} {large} {rest // small_s} {small}" if rest // small_s else f"{whole} {large}"


def figure(value: float | None, form: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return format(value, form) if value is not None and math.isfinite(value) else "-"


def tokens_per_s(value: float | None) -> str:
    """A training speed.

    >>> tokens_per_s(1240.4), tokens_per_s(None)
    ('1,240 tok/s', '-')
    """
    return f"{value:,.0f} tok/s" if value is not None else "-"


def time_left(progress: "RunProgress") -> str:
    """What comes to its end, and when: the run where it has an end, else the fall of its learning rate; empty where it
    is not known."""
    if progress.stop_after_tokens:
        left_s, text, done = progress.end_s, "{} to the end of the run", "at the end of the run"
    else:
        left_s, text, done = progress.eta_s, "learning rate falls for {} more", "learning rate at its lowest"
    if left_s is None:
        return ""
    return text.format(in_time(left_s)) if left_s else done


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "site"), plural(3, "site")
    ('1 site', '3 sites')
    """
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
