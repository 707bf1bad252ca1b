"""A soak under faults: `python -m tests.chaos --minutes M --sites 4 --seed S [--reference FILE | --no-reference]`.

Each site is a real daemon with real trainers on a tiny model in a network namespace of its own. A seeded plan kills,
freezes, cuts off and wipes them every few seconds. Afterwards: one state everywhere, sound logs, no phase lost or
counted twice, and a loss no more than 2% above that of an undisturbed run at equal tokens, as a mean over the last
third and over the 8 evaluations when all sites are in again. Exit code 1 if not.
Needs root, ip, iptables.
"""

import argparse
import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.judge import Verdict, judge, loss_excess
from tests.chaos.plan import make_plan
from tests.chaos.soak import CALM_ROUNDS, Options, Soak, SoakError
from tests.harness.internet.namespaces import NamespaceError

EXCESS_MAX = 0.02
REFERENCE_TOKENS = 1.1
"""The undisturbed run goes a little further, so that its curve covers the other one."""


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults come")
    parser.add_argument("--sites", type=int, default=4, choices=range(2, 9))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reference", type=Path, help="report.json of a soak whose undisturbed run is used again")
    parser.add_argument("--only-reference", type=int, metavar="TOKENS", help="only the undisturbed run, so far")
    parser.add_argument("--no-reference", action="store_true", help="do not compare the loss (and say so)")
    parser.add_argument("--out", type=Path, default=Path("chaos-out"), help="where report and plot go")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="passed on to `dilocoxd start`")
    return parser.parse_args(arguments)


class Teller:
    """Live progress, one line each."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:7.1f} s  {text}", flush=True)


def soaked(options: Options, say: Teller, *, until_tokens: int = 0) -> tuple[Soak, Verdict]:
    """Run it and judge what is left, also when it could not be carried on."""
    plan = [] if until_tokens else make_plan(options.seed, options.seconds, options.num_sites)
    soak, stuck = Soak(options, say), ""
    try:
        soak.run(plan, until_tokens=until_tokens)
    except SoakError as error:
        stuck = str(error)
    verdict = judge(soak.outcome)
    if stuck:
        verdict.violations.insert(0, stuck)
    verdict.values["heights"] = soak.outcome.heights
    verdict.values["fault_list"] = soak.outcome.faults
    verdict.values["started_unix"] = soak.outcome.started_unix
    return soak, verdict


def reference_curve(
    given: argparse.Namespace, options: Options, verdict: Verdict, say: Teller
) -> list[tuple[int, float]]:
    """Loss by tokens without faults: from the file, or from a run of its own, whose faults count as well."""
    if given.reference:
        return [(int(t), float(loss)) for t, loss in json.loads(given.reference.read_text())["reference_curve"]]
    tokens = verdict.values["tokens"]
    say(f"undisturbed run of {tokens:,} tokens")
    calm = dataclasses.replace(options, work=options.work.parent / "calm", prefix=f"{options.prefix}u")
    _, calm_verdict = soaked(calm, say, until_tokens=round(REFERENCE_TOKENS * tokens))
    verdict.violations += [f"the undisturbed run: {text}" for text in calm_verdict.violations]
    return list(calm_verdict.values["curve"])


def compare_losses(given: argparse.Namespace, options: Options, verdict: Verdict, say: Teller) -> None:
    """Add the reference and what came of the comparison."""
    values = verdict.values
    if given.no_reference:
        values["loss_excess"] = "not compared (--no-reference)"
        return
    values["reference_curve"] = reference = reference_curve(given, options, verdict, say)
    for name, stretch in (("last_third", values["curve"]), ("at_end", values["curve"][-CALM_ROUNDS:])):
        excess = values[f"loss_excess_{name}"] = loss_excess(stretch, reference)
        verdict.require(excess is not None, "the undisturbed run has no loss at equal tokens")
        where = name.replace("_", " ")
        verdict.require(
            (excess or 0.0) <= EXCESS_MAX, f"the loss is {excess or 0.0:.2%} above the undisturbed, {where}"
        )


def show(verdict: Verdict, console: Console) -> None:
    """The final table."""
    table = Table("what", "value")
    for name, value in verdict.values.items():
        if name not in ("curve", "reference_curve", "heights", "fault_list", "started_unix"):
            table.add_row(
                name, f"{value:+.2%}" if name.startswith("loss_excess") and isinstance(value, float) else str(value)
            )
    console.print(table)
    for violation in verdict.violations:
        console.print(f"VIOLATION: {violation}", markup=False, style="red")


def write_report(given: argparse.Namespace, verdict: Verdict) -> None:
    """report.json and chaos.png."""
    from tests.chaos import picture  # matplotlib, needed only now

    content: dict[str, Any] = {
        "ok": not verdict.violations,
        "seed": given.seed,
        "minutes": given.minutes,
        "sites": given.sites,
        "violations": verdict.violations,
        **verdict.values,
    }
    (given.out / "report.json").write_text(json.dumps(content, indent=1) + "\n")
    picture.draw(verdict.values, given.out / "chaos.png")


def main(arguments: list[str]) -> int:
    """Exit code: 0 if every promise was kept."""
    given = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or sites and namespaces would outlive a time-out
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="dilocoxd-chaos-"))
    prefix = f"ch{os.getpid() % 100000}"
    options = Options(given.minutes * 60, given.sites, given.seed, folder / "chaos", prefix, tuple(given.settings))
    say = Teller()
    try:
        _, verdict = soaked(options, say, until_tokens=given.only_reference or 0)
    except NamespaceError as error:
        print(f"network namespaces cannot be made (root, ip and iptables are needed): {error}", file=sys.stderr)
        return 1
    if given.only_reference:
        verdict.values["reference_curve"] = verdict.values["curve"]
    else:
        compare_losses(given, options, verdict, say)
    write_report(given, verdict)
    show(verdict, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    print(f"{'FAILED' if verdict.violations else 'ok'}; report and plot in {given.out}")
    if verdict.violations:
        print(f"the run directories are kept in {folder}; again: --seed {given.seed} --minutes {given.minutes:g}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
