"""The live terminal view: sites, newest rounds, what has happened so far."""

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dilocoxd.answers.words import figure as number, in_bytes
from dilocoxd.site_names import short_id
from tests.demo.history import SiteHistory

STORY_LINES = 9
ROUND_LINES = 6


class View:
    """Draws on a terminal; on anything else it prints the story line by line."""

    def __init__(self, histories: dict[str, SiteHistory]) -> None:
        self.console = Console(highlight=False)
        self._histories = histories
        self._story: list[str] = []
        self._started = time.monotonic()
        self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2, transient=False)

    def __enter__(self) -> "View":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        """Add a line to the story."""
        line = f"{time.monotonic() - self._started:6.1f} s  {text}"
        self._story.append(line)
        if not self.console.is_terminal:
            print(line, flush=True)

    def render(self) -> Group:
        """The whole picture."""
        story = Text("\n".join(self._story[-STORY_LINES:]))
        return Group(self._site_table(), self._round_table(), story)

    def _site_table(self) -> Table:
        table = Table(
            "site",
            "state",
            "outer step",
            "phase",
            "round",
            "inner loss",
            "validation",
            "out / in",
            "contrib",
            "waits for",
        )
        for history in self._histories.values():
            phase, round_, losses = history.part("phase"), history.part("round"), history.part("losses")
            table.add_row(
                history.name,
                Text(history.state, style="green" if history.state == "training" else "red"),
                f"{history.height} {short_id(str(history.status.get('chain_head') or ''))}",
                f"{phase.get('inner_step', '-')}/{phase.get('inner_steps', '-')}",
                f"{round_.get('round', '-')}.{round_.get('attempt', '-')} {round_.get('state', '')}",
                number(losses.get("inner")),
                number(losses.get("validation")),
                f"{in_bytes(history.total('bytes_sent'))} / {in_bytes(history.total('bytes_received'))}",
                number(history.part("totals").get("contributions"), "d"),
                Text(str(history.status.get("waiting_for") or ""), overflow="ellipsis", no_wrap=True),
            )
        return table

    def _round_table(self) -> Table:
        rows: dict[int, dict[str, Any]] = {}
        for history in self._histories.values():
            rows.update(history.rounds)
        names = {str(h.status.get("peer_id")): h.name for h in self._histories.values()}
        table = Table("round", "contributors", "attempts", "out", "exchange", "failures")
        for index in sorted(rows)[-ROUND_LINES:]:
            row = rows[index]
            table.add_row(
                str(index),
                "".join(sorted(names.get(c["peer"], "?") for c in row["contributors"])),
                str(row.get("attempts")),
                in_bytes(row.get("bytes_sent") or 0),
                f"{number((row.get('times') or {}).get('exchange_s'))} s",
                "; ".join(row.get("failures") or [])[:60],
            )
        return table
