"""A run of two sites on a published model: one with a pipeline of two stages, one of a single process; then what each
exports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.config.manifest import Manifest
from dilocoxd.models import StageModule
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trained.found import find_run
from dilocoxd.trained.load import load_model
from tests.harness.published.directory import LINES, publish
from tests.harness.published.prepared_here import prepared_here
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.warm import STEP_VARIABLE, load_families

PATIENCE_S = 150.0
STEP_S = "0.1"
"""Longer steps than tests have: the first site trains until the second is there, and need not do so many rounds."""
ROUNDS = 3
OPTIONS = (
    "--set", "model.seq_len=24", "--set", "inner.batch_sequences=4", "--set", "inner.microbatches=2",
    "--set", "strategy.inner_steps=4", "--set", "data.validation_sequences=4",
    "--set", "snapshot.every_rounds=4", "--set", "snapshot.keep=16",
)  # fmt: skip


@dataclass(frozen=True)
class FamilyRun:
    """Two stopped sites, `number`: a state behind ROUNDS entries that both are in, and the model published."""

    first: SiteProcess
    second: SiteProcess
    number: int
    library: Any

    def manifest(self) -> Manifest:
        return open_run_dir(self.first.run_dir).load()[0]

    def export(self, site: SiteProcess) -> Path:
        """What `dilocoxd export` writes of the common round."""
        out = site.run_dir.parent / f"{site.name}-out"
        arguments = ["export", str(site.run_dir), "--round", str(self.number), "--out", str(out)]
        result = CliRunner().invoke(cli, arguments, standalone_mode=False)
        assert result.exception is None, f"{result.exception}\n{result.output}"
        return out

    def own_model(self) -> StageModule:
        """The common round by our own code."""
        return load_model(find_run(self.first.run_dir), self.number, lambda _: None)[0]


def train(
    folder: Path, table: dict[str, Any], *founding: str, joining: tuple[str, ...] = (), init: bool = True
) -> FamilyRun:
    """Publish a model of this config.json and train it until ROUNDS entries have both sites in them."""
    library = publish(folder / "model", table)
    text = folder / "text.txt"
    text.write_text("".join(LINES), encoding="utf-8")
    cache = ("--cache", str(folder / "cache"))
    origin = ("--init", str(folder / "model")) if init else ("--config", str(folder / "model" / "config.json"))
    options = (*OPTIONS, *origin, *cache, "--stages", "2", "--data", f"text={text}", *founding)
    with prepared_here():
        first = found_run(folder, "first", *options)
    first.environment[STEP_VARIABLE] = STEP_S
    load_families()
    with sites(first):
        first.start()
        second = join_run(folder, "second", first, *cache, *joining)
        second.environment[STEP_VARIABLE] = STEP_S
        with sites(second):
            second.start()
            both = wait_until(lambda: _common(first), f"{ROUNDS} entries of both", PATIENCE_S, first.describe)
            second.wait_height(max(both) + 1, PATIENCE_S)
            assert second.stop() == 0
            assert first.stop() == 0
    return FamilyRun(first, second, max(both) + 1, library)


def _common(site: SiteProcess) -> list[int]:
    both = [row["round"] for row in site.rounds() if len(row["contributors"]) == 2]
    return both if len(both) >= ROUNDS else []


def same_files(one: Path, other: Path) -> bool:
    """Whether two exports name the same bytes."""
    return (one / "SHA256SUMS").read_text() == (other / "SHA256SUMS").read_text()


def ids(vocab: int) -> torch.Tensor:
    """Some tokens."""
    return torch.randint(0, vocab, (2, 20), generator=torch.Generator().manual_seed(4))
