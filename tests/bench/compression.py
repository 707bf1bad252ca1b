"""`python -m tests.bench.compression [--elements N]`: cost of codecs and low rank, in memcpys of the same fp32 bytes.

CPU time of one thread, median of a few repetitions, ratio to a copy of the same fp32 bytes in the same run, so that a
busy machine disturbs both; `torch_memcpys` is encode and decode by torch alone, without the compiled loops, in turns
with them. Low rank is set against its three products, all in fp32 and with the last one in float64, as bit parity needs
it (ALGORITHMS 8). Peak extra memory is what the process grew by while it worked, in units of the fp32
bytes: buffers of values, result and payload exist before.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dilocoxd.compress import loops
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform
from dilocoxd.outer.clipping import ClipRule
from dilocoxd.outer.passes import SegmentPass, encode_pass, reduce_pass, weigh_pass
from dilocoxd.outer.reduce import share_sketches
from dilocoxd.wire.layout import ParamSpec, make_layout

CODECS: list[tuple[str, dict[str, Any]]] = [
    ("fp32", {}),
    ("fp16", {}),
    ("bf16", {}),
    ("int8", {}),
    ("int4", {}),
    ("int4", {"scale": "pow2"}),
    ("e3m0", {}),
    ("int2", {}),
    ("int8bins", {}),
    ("topk", {}),
]


def cpu_seconds(actions: list[Callable[[], object]], repetitions: int) -> list[float]:
    """Median time of each; they take turns, so that a stretch of a busy machine hits all alike."""
    for action in actions:
        action()
    spent: list[list[float]] = [[] for _ in actions]
    for _ in range(repetitions):
        for found, action in zip(spent, actions, strict=True):
            started = time.process_time()
            action()
            found.append(time.process_time() - started)
    return [statistics.median(found) for found in spent]


def by_torch(action: Callable[..., object], *arguments: object) -> None:
    """Without the compiled loops (dilocoxd/compress/loops.py)."""
    kept, loops.found = loops.found, None
    try:
        action(*arguments)
    finally:
        loops.found = kept


def extra_bytes(action: Callable[[], object]) -> int:
    """By how much resident memory rises above what it is now while `action` runs."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = status_bytes("VmHWM")
    action()
    return status_bytes("VmHWM") - before


def status_bytes(name: str) -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def codec_rows(elements: int, repetitions: int) -> list[dict[str, Any]]:
    values = torch.randn(elements, generator=torch.Generator().manual_seed(0)) * 1e-3
    out = torch.empty_like(values)
    rows = []
    for name, options in CODECS:
        codec = codec_from_name(name, **options)
        payload = torch.empty(codec.payload_bytes(elements), dtype=torch.uint8)
        payload.zero_()
        extra = max(extra_bytes(lambda: codec.encode(values, payload)), extra_bytes(lambda: codec.decode(payload, out)))  # noqa: B023
        copy, encode, decode, torch_encode, torch_decode = cpu_seconds(
            [
                lambda: out.copy_(values),
                lambda c=codec, p=payload: c.encode(values, p),  # type: ignore[misc]
                lambda c=codec, p=payload: c.decode(p, out),  # type: ignore[misc]
                lambda c=codec, p=payload: by_torch(c.encode, values, p),  # type: ignore[misc]
                lambda c=codec, p=payload: by_torch(c.decode, p, out),  # type: ignore[misc]
            ],
            repetitions,
        )
        rows.append(
            {
                "codec": " ".join([name, *(f"{key}={value}" for key, value in options.items())]),
                "bits_per_value": 8 * payload.numel() / elements,
                "memcpy_ms": 1e3 * copy,
                "encode_memcpys": encode / copy,
                "decode_memcpys": decode / copy,
                "both_memcpys": (encode + decode) / copy,
                "torch_memcpys": (torch_encode + torch_decode) / copy,
                "extra_memory": extra / (4 * elements),
            }
        )
    return rows


def lowrank_row(rows: int, columns: int, r: int, repetitions: int) -> dict[str, Any]:
    """One matrix through both passes, as sender, owner and receiver, against the three products it needs."""
    layout = make_layout([ParamSpec("w", (rows, columns))], 1 << 26)
    segment = layout.segments[0]
    transform = LowRank(layout, r, codec_from_name("int4"))
    d = torch.randn(segment.numel, generator=torch.Generator().manual_seed(0)) * 1e-3
    matrix = d.view(rows, columns)
    q, p, delta = torch.randn(columns, r), torch.empty(rows, r), torch.empty_like(d)

    def products() -> None:
        torch.mm(matrix, q, out=p)
        factor = torch.mm(matrix.t(), p)
        torch.mm(p, factor.t(), out=delta.view(rows, columns))

    def exact() -> None:
        torch.mm(p.double(), q.t().double(), out=wide)

    wide = torch.empty(rows, columns, dtype=torch.float64)

    def both_passes() -> None:
        results: list[bytearray] = []
        for index in range(2):
            at = SegmentPass(transform, index, segment, tuple(results))
            share, result = bytearray(at.payload_bytes), bytearray(at.payload_bytes)
            encode_pass(at, d, share)
            reduce_pass(at, [share], [1.0], None, result)
            results.append(result)
        transform.expand(segment, results[1], results[:1], delta)
        transform.learn(segment, results)

    extra = extra_bytes(both_passes)
    whole, needed, wide_product = cpu_seconds([both_passes, products, exact], repetitions)
    needed_wide = needed * 2 / 3 + wide_product
    return {
        "matrix": f"{rows}x{columns}",
        "lowrank_r": r,
        "products_ms": 1e3 * needed,
        "whole_ms": 1e3 * whole,
        "ratio_fp32": whole / needed,
        "ratio_exact": whole / needed_wide,
        "bytes_ratio": 4 * segment.numel / sum(map(sum, transform.payload_table())),
        "extra_memory": extra / (4 * segment.numel),
    }


def reduction_rows(elements: int, repetitions: int, num_shares: int = 8) -> list[dict[str, Any]]:
    """What the owner of a segment does: the mean alone, with norms and factors, around a center, and sketches."""
    layout = make_layout([ParamSpec("w", (elements,))], -(-elements // 4096) * 4096)
    rows = []
    for name in ("int4", "int8", "int2", "topk", "fp32"):
        at = SegmentPass(NoTransform(layout, codec_from_name(name)), 0, layout.segments[0])
        shares = []
        for number in range(num_shares):
            shares.append(bytearray(at.payload_bytes))
            encode_pass(at, torch.randn(elements, generator=torch.Generator().manual_seed(number)), shares[-1])
        weights, out = [1 / num_shares] * num_shares, bytearray(at.payload_bytes)

        def reduce(rule: ClipRule, at: SegmentPass = at, shares: list[bytearray] = shares) -> None:
            reduce_pass(at, shares, weigh_pass(at, shares, weights, rule)[0], None, out)  # noqa: B023

        plain, clipped, centered, sketched = cpu_seconds(
            [
                lambda reduce=reduce: reduce(ClipRule()),  # type: ignore[misc]
                lambda reduce=reduce: reduce(ClipRule(2.5)),  # type: ignore[misc]
                lambda reduce=reduce: reduce(ClipRule(1.0, torch.zeros(elements))),  # type: ignore[misc]
                lambda at=at, s=shares: share_sketches(at.transform.codec(0, at.segment), s, elements),  # type: ignore[misc]
            ],
            repetitions,
        )
        rows.append(
            {
                "codec": name,
                "shares": num_shares,
                "mean_ms": 1e3 * plain,
                "clipped": clipped / plain,
                "centered": centered / plain,
                "sketches": sketched / plain,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compression", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 25)
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    codecs = codec_rows(arguments.elements, arguments.repetitions)
    lowrank = [lowrank_row(1024, 4096, r, arguments.repetitions) for r in (16, 64, 128)]
    reductions = reduction_rows(min(arguments.elements, 1 << 20), arguments.repetitions)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, 1 thread, CPU time\n")
    show(codecs)
    print()
    show(lowrank)
    print()
    show(reductions)
    if arguments.json:
        tables = {"codecs": codecs, "lowrank": lowrank, "reductions": reductions}
        arguments.json.write_text(json.dumps(tables, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
