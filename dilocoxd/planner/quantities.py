"""What people write for rates and times, as numbers; how numbers are written for people."""

import re
from typing import Final

from dilocoxd.errors import ConfigError

BIT_UNITS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
TIME_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
RATE_LEAST, RATE_MOST = 1e3, 1e13
"""bit/s: below it somebody forgot a unit, above it no machine has a link."""
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMG]?)(?:bit(?:/s)?|bps)?")
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)")


def parse_rates(text: str) -> tuple[float, float]:
    """(upload, download) in bit/s of `100M` or, upload first, `20M/100M`. Raises ConfigError.

    >>> parse_rates("20M/1G")
    (20000000.0, 1000000000.0)
    """
    parts = text.split("/") if not text.endswith("bit/s") else [text]
    found = [_RATE.fullmatch(part) for part in parts]
    rates = [float(match[1]) * BIT_UNITS[match[2]] for match in found if match]
    if len(rates) != len(parts) or len(rates) > 2:
        raise ConfigError(f"--link {text!r} cannot be read; write bits per second like 100M, or UPLOAD/DOWNLOAD 20M/1G")
    if not RATE_LEAST <= min(rates) <= max(rates) <= RATE_MOST:
        raise ConfigError(
            f"--link {text!r} says {min(rates):.3g} bit/s; give 1k to 10000G, with its unit: megabits per second as"
            " 100M"
        )
    return rates[0], rates[-1]


def parse_time(option: str, text: str, least_s: float, most_s: float) -> float:
    """Seconds of `80ms` or `0.7s`, from `least_s` to `most_s`. Raises ConfigError that names `option`.

    >>> parse_time("--rtt", "80ms", 0, 10)
    0.08
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ConfigError(f"{option} {text!r} cannot be read; write a number with ms or s, like 80ms")
    found = float(match[1]) * TIME_UNITS[match[2]]
    if not least_s <= found <= most_s:
        raise ConfigError(f"{option} {text!r} is out of range; give {in_seconds(least_s)} to {in_seconds(most_s)}")
    return found


def in_decimal(value: float, unit: str) -> str:
    """A value with the prefix that keeps it short, in powers of 1000.

    >>> in_decimal(1.5e9, "B")
    '1.5 GB'
    """
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"


def in_seconds(value: float) -> str:
    """A time of any length.

    >>> in_seconds(0.0123), in_seconds(5400)
    ('12.3 ms', '90 min')
    """
    if value < 1:
        return f"{value * 1000:.3g} ms"
    for size, unit in ((1.0, "s"), (60.0, "min"), (3600.0, "h")):
        if value < 300 * size or unit == "h":
            return f"{value / size:.3g} {unit}"
    raise AssertionError("hours take any value")
