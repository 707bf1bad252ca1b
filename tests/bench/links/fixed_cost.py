"""What a round costs besides bytes and sums: daemons without models over links of the test internet.

`python -m tests.bench.links.fixed_cost [--sites 2,3] [--rtts-ms 0,50] [--connections 0,8] [--rounds 8] [--phase-s 1]`.
From the moment at which the last site has formed its contribution to the moment at which the last one has applied the
entry, as the sites' recordings tell it; payloads are 4 kB. `refused`: offers of segments that came before the proposal.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from dilocoxd.machines.exchange.facts import TransferFailed
from dilocoxd.machines.round.inputs import EntryApplied, EntryPersisted, PassPrepared, PhaseOffered
from dilocoxd.machines.transcript import Input, decode
from dilocoxd.store.recording import read_records, recordings
from tests.bench import end_when_told
from tests.harness.internet.conditions import rtt
from tests.harness.internet.life import committed, founded, peer_of, wait_entry_with
from tests.harness.internet.network import Internet
from tests.harness.running.sites import sites

PREFIX = f"ch{os.getpid() % 10000}fc"
NAMES = "abcd"
VARIABLE = "DILOCOXD_NETWORK__DATA_CONNECTIONS"
PATIENCE_S = 120.0
MOMENTS = {PhaseOffered: "offered", PassPrepared: "exchanged", EntryPersisted: "persisted", EntryApplied: "applied"}


@dataclass(slots=True)
class Moments:
    """Of one round: by what happened, the times at which it did at each site; seconds of one clock."""

    at: dict[str, list[float]] = field(default_factory=dict)
    num_refused: int = 0

    def last(self, what: str) -> float:
        return max(self.at[what])


def rounds_of(run_dirs: list[Path]) -> dict[int, Moments]:
    """All rounds that the recordings of these sites tell of."""
    found: dict[int, Moments] = {}
    for run_dir in run_dirs:
        number = 0
        for path in recordings(run_dir / "logs"):
            for record in map(decode, read_records(path)):
                if not isinstance(record, Input):
                    continue
                event, moments = record.event, found.setdefault(number, Moments())
                moments.num_refused += isinstance(event, TransferFailed)
                if what := MOMENTS.get(type(event)):
                    moments.at.setdefault(what, []).append(record.now)
                if isinstance(event, EntryApplied):
                    number = event.round + 1
    return found


def measured(num_sites: int, rtt_s: float, connections: int, num_rounds: int, phase_s: float) -> list[Moments]:
    """The moments of `num_rounds` rounds of `num_sites` sites, after those in which they met."""
    names = NAMES[:num_sites]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        internet = stack.enter_context(Internet(PREFIX, names, rtt(rtt_s)))
        members = founded(folder, internet)
        os.environ[VARIABLE] = str(connections)
        stack.callback(os.environ.pop, VARIABLE)
        stack.enter_context(sites(*members))
        for member in members:
            member.start_without_model(phase_s)
        wait_entry_with(members[0], {peer_of(member) for member in members}, 0)
        first = len(committed(members[0])) + 1
        members[0].wait_height(first + num_rounds + 1, PATIENCE_S)
        found = rounds_of([member.run_dir for member in members])
        whole = [found[n] for n in range(first, first + num_rounds) if n in found]
        return [one for one in whole if [len(one.at.get(what, ())) for what in MOMENTS.values()] == [num_sites] * 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", default="2,3")
    parser.add_argument("--rtts-ms", default="0,50")
    parser.add_argument("--connections", default="0,8")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--phase-s", type=float, default=1.0)
    options = parser.parse_args()
    print(
        "| sites | round trip | connections | rounds | cost | exchange | vote, log | apply | refused |\n"
        + "|---" * 9
        + "|"
    )
    for num_sites in map(int, options.sites.split(",")):
        for milliseconds in map(float, options.rtts_ms.split(",")):
            for connections in map(int, options.connections.split(",")):
                found = measured(num_sites, milliseconds / 1000, connections, options.rounds, options.phase_s)
                parts = [
                    statistics.median(one.last(after) - one.last(before) for one in found)
                    for before, after in (
                        ("offered", "applied"), ("offered", "exchanged"), ("exchanged", "persisted"),
                        ("persisted", "applied"),
                    )
                ]  # fmt: skip
                shown = " | ".join(f"{seconds:.3f}" for seconds in parts)
                refused = sum(one.num_refused for one in found)
                print(
                    f"| {num_sites} | {milliseconds:g} ms | {connections} | {len(found)} | {shown} | {refused} |",
                    flush=True,
                )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    end_when_told()
    main()
