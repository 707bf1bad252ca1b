"""Runs the demo and says whether it worked: `python -m tests.demo [--sites N] [--rounds N] [--no-faults]`."""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dilocoxd.answers.words import in_bytes
from dilocoxd.errors import DilocoxdError
from tests.demo.history import Watcher
from tests.demo.liar import LIES, TOGETHER_MIN
from tests.demo.report import Report, evaluate, in_a_sentence
from tests.demo.scenario import DemoFailedError, Options, Scenario
from tests.demo.view import View
from tests.harness.running.run_directories import free_port
from tests.harness.running.sites import SiteProcess, sites

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""^C, a supervisor or `make` that ends, a closed terminal: sites, in sessions of their own, hear none of them."""
NAMES = "ABCDEFGHI"
"""Of the sites; the liar, if there is one, has the last."""


def parsed(arguments: list[str]) -> Options:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__)
    parser.add_argument("--sites", type=int, default=3, choices=range(1, len(NAMES)), help="number of honest sites")
    parser.add_argument("--rounds", type=int, default=24, help="outer steps before the demo ends")
    parser.add_argument("--no-faults", action="store_true", help="kill nobody")
    parser.add_argument(
        "--liar",
        choices=[*LIES, "none"],
        help="one more site that poisons: huge (each contribution times -1e6) or flipped (wrong sign), named, clipped"
        " and evicted in the end; default: huge in the full demo, none with --no-faults; needs two honest sites",
    )
    parser.add_argument("--preset", default="demo", help="preset or run.toml")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where report and plot go")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="passed on to `dilocoxd start`")
    given = parser.parse_args(arguments)
    can_compare = given.sites >= TOGETHER_MIN - 1
    if given.liar not in (None, "none") and not can_compare:
        parser.error("--liar needs --sites 2 or more: who lies is told by comparing it with two others")
    liar = given.liar or ("none" if given.no_faults or not can_compare else "huge")
    return Options(
        num_sites=given.sites,
        rounds=given.rounds,
        with_faults=not given.no_faults,
        preset=given.preset,
        out=given.out,
        settings=tuple(given.settings),
        liar="" if liar == "none" else liar,
    )


def run(options: Options, work: Path) -> Report:
    """Play the story in `work`, write plot and text into options.out; the report."""
    members = [SiteProcess(name, work / name, free_port()) for name in NAMES[: options.num_sites + bool(options.liar)]]
    watcher = Watcher(members)
    started = time.monotonic()
    report = Report()
    with sites(*members), View(watcher.histories) as view:
        scenario = Scenario(options, members, watcher, view.say)
        watcher.start()
        try:
            scenario.play()
        except DemoFailedError as error:
            report.failures.append(str(error))
        finally:
            watcher.stop()
    wall_s = time.monotonic() - started
    if not report.failures:
        try:
            report = finished(options, scenario, members)
        except DilocoxdError as error:
            report.failures.append(f"what the sites left cannot be used: {error}")
    report.values["wall_s"] = round(wall_s, 1)
    return report


def finished(options: Options, scenario: Scenario, members: list[SiteProcess]) -> Report:
    """Judge, let the model write, draw."""
    from tests.demo import plot, sample  # torch and matplotlib, needed only now

    honest = members[: options.num_sites]
    found = sample.outcome([member.run_dir for member in honest])
    histories = {member.name: scenario.watcher.histories[member.name] for member in honest}
    report = evaluate(
        options,
        scenario.facts,
        histories,
        unigram_entropy=found.unigram_entropy,
        num_parameters=found.num_parameters,
    )
    report.values |= dataclasses.asdict(found)
    at = scenario.facts.killed.get("at_unix")
    site = scenario.facts.killed.get("site")
    marks = {f"{site} killed": float(str(at)), f"{site} back": scenario.facts.returned_at} if at else {}
    if scenario.facts.liar:
        marks[f"{scenario.facts.liar['name']} evicted"] = scenario.facts.liar["evicted_at"]
    plot.draw(histories, options.out / "demo.png", unigram_entropy=found.unigram_entropy, marks=marks)
    return report


def show(report: Report, console: Console, out: Path) -> None:
    """The final table and the text."""
    values = report.values
    if "sites" in values:
        table = Table("site", "outer step", "chain head", "anchor", "contributions", "sent", "received", "idle")
        for name, site in values["sites"].items():
            table.add_row(
                name,
                str(site["height"]),
                str(site["chain_head"])[:12],
                str(site["anchor_sha256"])[:12],
                str(site["contributions"]),
                in_bytes(site["bytes_sent"]),
                in_bytes(site["bytes_received"]),
                f"{site['idle_fraction']:.2%}",
            )
        console.print(table)
        console.print(
            f"validation loss {values['validation_loss_before']:.3f} -> {values['validation_loss_after']:.3f}"
            f" (unigram entropy {values['unigram_entropy']:.3f}),"
            f" {values['rounds_committed']} outer steps, {values['tokens']:,.0f} tokens,"
            f" {in_bytes(values['bytes_per_round_per_site'])} per round and site"
            f" (the parameters in fp32: {in_bytes(values['fp32_bytes'])})"
        )
        if values["liar"]:
            console.print(in_a_sentence(values["liar"]), markup=False)
        for text in values["texts"]:
            console.print(f"  {text}", markup=False)
    for failure in report.failures:
        console.print(f"FAILED: {failure}", markup=False, style="red")
    console.print(f"{'FAILED' if report.failures else 'ok'} after {values['wall_s']} s; report and plot in {out}")


class EndedError(BaseException):
    """A signal asks the demo to end; like KeyboardInterrupt no failure that anybody handles on its way out."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def end_by_signal(number: int, _: object) -> None:
    """Handler: unwind, which ends all sites. What is asked once is not asked again, or it would cut that short."""
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)
    raise EndedError(number)


def take_signals() -> None:
    """Unwind on signals of ENDING but those that whoever started us wants ignored: nohup, a shell's background."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_by_signal)


def without_nan(value: object) -> object:
    """JSON has no NaN: None instead."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: list[str]) -> int:
    """Exit code: 0 if everything that the demo shows was seen."""
    options = parsed(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options.out.mkdir(parents=True, exist_ok=True)
    take_signals()
    work = Path(tempfile.mkdtemp(prefix="dilocoxd-demo-"))
    try:
        report = run(options, work)
    except EndedError as ended:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"{ended}: no site runs any more; the run directories are kept in {work}", flush=True)
        return ended.exit_code
    content = {"ok": not report.failures, "failures": report.failures, **report.values}
    (options.out / "report.json").write_text(json.dumps(without_nan(content), indent=1) + "\n")
    for log in work.glob("*.out"):
        shutil.copy(log, options.out / f"site-{log.stem}.log")
    show(report, Console(highlight=False, width=None if sys.stdout.isatty() else 120), options.out)
    if report.failures:
        print(f"the run directories are kept in {work}")
    else:
        shutil.rmtree(work)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
