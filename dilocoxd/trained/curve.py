"""The picture of a run: validation loss by round, as an SVG that any browser shows; needs no drawing library."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 32, 44
TICKS = 5


def validation_losses(logs: Path, last_round: int) -> dict[int, float]:
    """Round to validation loss of the shared model, as this site measured it, up to `last_round`; a broken line of
    the event files is left out."""
    found: dict[int, float] = {}
    for name in ("events.jsonl.1", "events.jsonl"):
        try:
            lines = (logs / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue
        for line in lines:
            if '"validation.measured"' not in line:
                continue
            try:
                record = json.loads(line)
                number, loss = int(record["round"]), float(record["validation_loss"])
            except (ValueError, KeyError, TypeError):
                continue
            if number <= last_round and math.isfinite(loss):
                found[number] = loss
    return dict(sorted(found.items()))


def draw(losses: Mapping[int, float], title: str) -> str:
    """SVG text of the curve; there must be at least one point."""
    rounds, values = list(losses), list(losses.values())
    first, last = rounds[0], max(rounds[-1], rounds[0] + 1)
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def x(number: float) -> float:
        return LEFT + (number - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    points = " ".join(f"{x(number):.1f},{y(loss):.1f}" for number, loss in losses.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid([(y(v), f"{v:.3f}") for v in _even(low, high)], [(x(v), f"{v:.0f}") for v in _even(first, last)]),
        f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="2"/>',
        f'<circle cx="{x(rounds[-1]):.1f}" cy="{y(values[-1]):.1f}" r="3" fill="#1f77b4"/>',
        f'<text x="{LEFT}" y="20">{escape(title)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">round</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _even(low: float, high: float) -> list[float]:
    return [low + (high - low) * index / (TICKS - 1) for index in range(TICKS)]


def _grid(rows: Iterable[tuple[float, str]], columns: Iterable[tuple[float, str]]) -> list[str]:
    found = []
    for place, text in rows:
        found.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}" stroke="#ddd"/>')
        found.append(f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{text}</text>')
    for place, text in columns:
        found.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>')
    return found
