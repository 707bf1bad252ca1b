"""How fast the processors of a site compute, as far as a data sheet and one assumption can say.

A measured step time (`--step-time`, or `step_seconds` of a daemon's status) is always better than these.
"""

from dataclasses import dataclass
from typing import Final

from dilocoxd.errors import ConfigError

GB: Final = 10**9
PROCESSORS_MAX: Final = 65536
"""Of one site."""
DIGITS_MAX: Final = 6
TERA: Final = 1e12
PEAK_SHARE: Final = 0.4
"""Of a GPU's peak that training reaches; large dense models with little communication get 0.35 to 0.5."""
CPU_FLOP_PER_S: Final = 36e9
"""Of one core: preset `demo` in `python -m tests.bench.trainer` (docs/benchmarks.md, Inner training)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak of dense bf16 and of fp32 without tensor cores, in FLOP/s, and memory in bytes. From data sheets."""

    bf16_flop_per_s: float
    fp32_flop_per_s: float
    memory_bytes: int


GPUS: Final[dict[str, Gpu]] = {
    "V100": Gpu(125 * TERA, 15.7 * TERA, 32 * GB),
    "RTX3090": Gpu(71 * TERA, 35.6 * TERA, 24 * GB),
    "RTX4090": Gpu(165 * TERA, 82.6 * TERA, 24 * GB),
    "A100": Gpu(312 * TERA, 19.5 * TERA, 80 * GB),
    "A800": Gpu(312 * TERA, 19.5 * TERA, 80 * GB),
    "L40S": Gpu(362 * TERA, 91.6 * TERA, 48 * GB),
    "H100": Gpu(989 * TERA, 67 * TERA, 80 * GB),
    "H200": Gpu(989 * TERA, 67 * TERA, 141 * GB),
    "B200": Gpu(2250 * TERA, 80 * TERA, 192 * GB),
}


@dataclass(frozen=True, slots=True)
class Processors:
    """`count` alike processors of one site."""

    count: int
    gpu: Gpu | None
    """None: CPU cores."""
    name: str = ""
    """Of the GPU."""

    def used_by(self, trainers: int) -> "Processors":
        """Those of them that so many trainers use: one each, or the same ones together where there are fewer."""
        return Processors(min(self.count, trainers), self.gpu, self.name)

    def in_words(self, nodes: int) -> str:
        """All of a site with so many machines, and those of each."""
        each = f"{self.count // nodes} on each of {nodes} nodes" if nodes > 1 else "all on one node"
        return f"{self.count} {self.name}: {each}"

    def trained_on(self) -> str:
        """What a step is computed for, where all of these train."""
        return f"{self.count} {self.name or ('CPU core' if self.count == 1 else 'CPU cores')}"

    def gpu_memory_bytes(self, trainers: int) -> int:
        """What each of so many trainers has of a GPU; 0 without GPUs."""
        return self.gpu.memory_bytes // -(-trainers // self.count) if self.gpu else 0

    def flop_per_s(self, dtype: str) -> float:
        """What all of them together reach in training in this arithmetic."""
        if self.gpu is None:
            return self.count * CPU_FLOP_PER_S
        peak = self.gpu.bf16_flop_per_s if dtype == "bfloat16" else self.gpu.fp32_flop_per_s
        return self.count * peak * PEAK_SHARE


def _number(text: str) -> int:
    """0: none that anybody means."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX else 0


def parse_gpus(text: str, option: str = "--gpus", machines: int = 1) -> Processors:
    """The processors in `8xA100` or, with memory in GB, `8xA100:40`, given with `option`, on so many machines each.

    Raises ConfigError.

    >>> parse_gpus("8xA100:40").gpu.memory_bytes
    40000000000
    """
    count, cross, rest = text.partition("x")
    name, colon, memory = rest.partition(":")
    gpu = GPUS.get(name.upper())
    is_number = 0 < _number(count) * machines <= PROCESSORS_MAX and (not colon or _number(memory) > 0)
    if not cross or gpu is None or not is_number:
        raise ConfigError(
            f"{option} {text!r} cannot be read; write NUMBERxNAME like 8xA100, at most {PROCESSORS_MAX} in a site, with"
            f" memory in GB 8xA100:40; known names: {', '.join(GPUS)}; for any other give --step-time"
        )
    memory_bytes = int(memory) * GB if colon else gpu.memory_bytes
    kind = Gpu(gpu.bf16_flop_per_s, gpu.fp32_flop_per_s, memory_bytes)
    return Processors(int(count) * machines, kind, name.upper())
