"""Runs the demo and says whether it worked: `python -m tests.demo [--sites N] [--rounds N] [--no-faults]`."""

import argparse
import dataclasses
import json
import math
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dilocoxd.cli.status import in_bytes
from dilocoxd.errors import DilocoxdError
from tests.demo.history import Watcher
from tests.demo.report import Report, evaluate
from tests.demo.scenario import DemoFailedError, Options, Scenario
from tests.demo.view import View
from tests.harness.sites import SiteProcess, sites

NAMES = "ABCDEFGH"


def parsed(arguments: list[str]) -> Options:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__)
    parser.add_argument("--sites", type=int, default=3, choices=range(1, len(NAMES) + 1), help="number of sites")
    parser.add_argument("--rounds", type=int, default=24, help="outer steps before the demo ends")
    parser.add_argument("--no-faults", action="store_true", help="kill nobody")
    parser.add_argument("--preset", default="demo", help="preset or run.toml")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where report and plot go")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="passed on to `dilocoxd start`")
    given = parser.parse_args(arguments)
    return Options(
        num_sites=given.sites,
        rounds=given.rounds,
        with_faults=not given.no_faults,
        preset=given.preset,
        out=given.out,
        settings=tuple(given.settings),
    )


def free_ports(count: int) -> list[int]:
    """Loopback TCP ports that nobody uses now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(p.getsockname()[1]) for p in probes]
    for probe in probes:
        probe.close()
    return ports


def run(options: Options, work: Path) -> Report:
    """Play the story in `work`, write plot and text into options.out; the report."""
    members = [
        SiteProcess(name, work / name, port) for name, port in zip(NAMES, free_ports(options.num_sites), strict=False)
    ]
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

    found = sample.outcome([m.run_dir for m in members])
    histories = scenario.watcher.histories
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
        for text in values["texts"]:
            console.print(f"  {text}", markup=False)
    for failure in report.failures:
        console.print(f"FAILED: {failure}", markup=False, style="red")
    console.print(f"{'FAILED' if report.failures else 'ok'} after {values['wall_s']} s; report and plot in {out}")


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
    work = Path(tempfile.mkdtemp(prefix="dilocoxd-demo-"))
    report = run(options, work)
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
