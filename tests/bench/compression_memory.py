"""`python -m tests.bench.compression_memory [--elements N]`: peak extra memory of compressing one segment.

What a process has beyond the values, the payload and the result, which exist anyway, while it encodes, decodes and
reduces one segment; in units of the segment's fp32 bytes. The kernel's high-water mark, reset before each action; glibc
is told to give every large block back at once, so that what a former action left behind hides nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.outer.passes import SegmentPass, encode_pass, reduce_pass
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.bench.compression import CODECS, show

THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
SHARES = 4


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


def peak_extra_bytes(action: Callable[[], object]) -> int:
    action()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_kib("VmRSS")
    action()
    return (memory_kib("VmHWM") - before) * 1024


def row(name: str, transform: Transform) -> dict[str, object]:
    segment = transform.layout.segments[0]
    d = torch.randn(segment.numel, generator=torch.Generator().manual_seed(0)) * 1e-3
    delta = torch.empty_like(d)
    rows: dict[str, object] = {"codec": name}
    results: list[bytearray] = []
    for index in range(transform.num_passes):
        at = SegmentPass(transform, index, segment, tuple(results))
        share, result = bytearray(at.payload_bytes), bytearray(at.payload_bytes)
        last: list[Callable[[], object]] = [
            lambda at=at, share=share: encode_pass(at, d, share),  # type: ignore[misc]
            lambda at=at, share=share, result=result: reduce_pass(  # type: ignore[misc]
                at, [share] * SHARES, [1 / SHARES] * SHARES, None, result
            ),
        ]
        for what, action in zip(("encode", "reduce"), last, strict=True):
            rows[what] = max(float(rows.get(what, 0)), peak_extra_bytes(action) / (4 * segment.numel))  # type: ignore[arg-type]
        results.append(result)
    expand = peak_extra_bytes(lambda: transform.expand(segment, results[-1], results[:-1], delta))
    rows["decode"] = expand / (4 * segment.numel)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compression_memory", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of the segment; default: that of the presets")
    elements = parser.parse_args().elements
    if THRESHOLD not in os.environ:
        arguments = [sys.executable, "-m", "tests.bench.compression_memory", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, THRESHOLD: "65536"})
    torch.set_num_threads(1)
    layout = make_layout([ParamSpec("w", (1024, elements // 1024))], 1 << 26)
    rows = [row(name, NoTransform(layout, codec_from_name(name, **options))) for name, options in CODECS if not options]
    rows.append(row("lowrank 64", LowRank(layout, 64, codec_from_name("int4"))))
    show(rows)


if __name__ == "__main__":
    main()
