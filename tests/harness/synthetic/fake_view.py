"""A view and a control for the API without a daemon: a site with any number of rounds, all values made by formulas.

Pages can be developed against it: `python -m tests.harness.synthetic.fake_view PORT NUM_ROUNDS`.
"""

import asyncio
import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dilocoxd.answers.alerts import ExplainedAlert, PastAlert, StandingAlert
from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.fields import DaemonState
from dilocoxd.answers.history import LossCurves, OwnSpan, SiteLosses, SiteSpan, SiteTimeline, SwarmTimeline
from dilocoxd.answers.members import Member
from dilocoxd.answers.peers import Peer, Ping, Reach, TriedAddress
from dilocoxd.answers.progress import RunProgress, StageSpeeds
from dilocoxd.answers.rounds import Contributor, LogEntry, RoundRow, RoundTimes
from dilocoxd.answers.site import ProfileStatus, ResolvedConfig, Sample, Snapshot
from dilocoxd.answers.status import (
    Audits,
    LifetimeTotals,
    Losses,
    PayloadSizes,
    PeerCounts,
    Phase,
    Round,
    Samples,
    Status,
    Strategy,
    Totals,
    TrainerProcesses,
    WorkerProcess,
)
from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from dilocoxd.daemon.observe.progress import site_counts
from dilocoxd.errors import CommandRefused
from dilocoxd.telemetry.alerts import KINDS
from dilocoxd.telemetry.catalogue import Level

PEERS = ("QmFakeSiteA", "QmFakeSiteB", "QmFakeSiteC")
ME = PEERS[0]
NAMES = dict(zip(PEERS, ("alpha", "beta", "gamma"), strict=True))
START = 1_790_000_000.0
ROUND_S = 30.0
STEPS = 20


def digest(text: str) -> str:
    """Hex that looks like a hash."""
    return hashlib.sha256(text.encode()).hexdigest()


class FakeView:
    """Implements api.interface.View."""

    def __init__(self, num_rounds: int = 3) -> None:
        self.num_rounds = num_rounds
        self.profiles = [ProfileStatus()]
        self.samples = [Sample()]
        """What is told next; the last one again and again."""
        self.is_healthy = True
        self.is_ready = False
        self.run_id = "fake-0123456789abcdef"
        self.state: DaemonState = "joining"
        self.waiting_for = "an answer of the first peer"
        self.admission = "open"
        self.live = list(PEERS[1:])
        self.alert_codes = ["left_out"]
        self.listeners: list[Callable[[dict[str, object]], None]] = []
        self.num_status = 0
        self.extra: dict[str, Any] = {}
        self.num_telling = 2
        """Sites of which losses are known, this one among them: of three, one does not say."""

    @property
    def now(self) -> float:
        return START + self.num_rounds * ROUND_S

    def emit(self, **record: object) -> None:
        """Tell all listeners."""
        for listener in self.listeners:
            listener({"time": self.now, "level": "info", **record})

    def listen(self, listener: Callable[[dict[str, object]], None]) -> None:
        self.listeners.append(listener)

    def status(self) -> Status:
        self.num_status += 1
        n = self.num_rounds
        status = Status(
            peer_id=ME, name=NAMES[ME], run_id=self.run_id, version="0.1.0", state=self.state,
            waiting_for=self.waiting_for, height=n, chain_head=digest(f"e{n - 1}"),
            anchor_sha256=digest(f"a{n}"), state_digest=digest(f"s{n}"), started_at=START,
            uptime_s=self.now - START, addresses=(f"/ip4/10.0.0.1/tcp/31337/p2p/{ME}",),
            join_address=f"/ip4/10.0.0.1/tcp/31337/p2p/{ME}", admission=self.admission,
            phase=Phase(phase=n, inner_step=7, inner_steps=STEPS, global_step=STEPS * n + 7, base_round=n,
                        step_seconds=1.2),
            round=Round(round=n, attempt=0, state="exchanging", coordinator=PEERS[1], group=(ME, *self.live),
                        observers=(), waiting_for=""),
            progress=RunProgress(
                steps_done=STEPS * n, steps_total=STEPS * (n + 100), eta_s=100 * ROUND_S, round_s=ROUND_S,
                stop_after_tokens=0, end_s=None,
                tokens_per_s=6826.7, swarm_tokens_per_s=6826.7 + 6000 * len(self.live),
                swarm_tokens=8192 * len(PEERS) * n, learning_rate=2.5e-3, gradient_norm=0.72,
                model_flops_per_s=4.1e11, memory_bytes=1_200_000_000, mfu=0.38, skipped_steps=2,
                data_s=0.012, bubble=0.21,
                stages=StageSpeeds(compute_s=(0.7, 0.75), faster_layers=(), faster_saves=None),
                rank_memory_bytes=(610_000_000, 580_000_000),
                sites=site_counts(self.state, self.peers()),
            ),
            totals=Totals(tokens=8192 * STEPS * n, inner_steps=STEPS * n, contributions=n, rounds_committed=n,
                          bytes_sent=1_000_000 * n, bytes_received=1_500_000 * n, idle_s=0.2 * n, train_s=29.0 * n,
                          attempts_failed=n // 10),
            lifetime=LifetimeTotals(
                tokens=2 * 8192 * STEPS * n, inner_steps=2 * STEPS * n, bytes_sent=2_000_000 * n,
                bytes_received=3_000_000 * n, attempts_failed=n // 5, counted_since=START - 86_400.0,
            ),
            losses=Losses(inner=3.2, validation=3.4, validation_round=n),
            peers=PeerCounts(known=len(PEERS) - 1, live=len(self.live), with_data=len(self.live),
                             took_part_last_round=len(PEERS), missed_last_round=0),
            strategy=Strategy(inner_steps=STEPS, lowrank_r=64),
            payload=PayloadSizes(parameters=10_000_000, fp32_bytes=40_000_000, payload_bytes=400_000, kept_from=0,
                                 compression_ratio=100.0),
            workers={"outer": WorkerProcess(state="running", restarts=0, pid=11),
                     "trainer": TrainerProcesses(state="running", restarts=1, generation=2, pids=(12, 13)),
                     "p2pd": WorkerProcess(state="running", restarts=0, pid=14)},
            bad_input={PEERS[2]: {"malformed": 2}},
            audits=Audits(made=3 * n, bytes_received=40_000 * n, unanswered=1),
            samples=Samples(taken=64 * n, twice=n),
            rounds_behind=0,
            took_part_last_round=True,
            alerts=tuple(
                StandingAlert(code=one.code, severity=one.severity, text=one.text, remedy=one.remedy, since=one.since)
                for one in self.alerts()
            ),
        )  # fmt: skip
        return replace(status, **self.extra)

    def peers(self) -> list[Peer]:
        n = self.num_rounds
        return [
            Peer(
                peer_id=peer, name=NAMES[peer], addresses=(f"/ip4/10.0.{i}.1/tcp/31337",),
                is_known=True, is_live=peer in self.live,
                took_part_last_round=peer in self.live, membership="alive" if peer in self.live else "dead",
                state="training", height=n - i, rounds_behind=i, chain_head=digest(f"e{n - 1 - i}"),
                state_digest=digest(f"s{n - i}"), last_seen_s=0.4 if peer in self.live else 90.0, step_seconds=1.0 + i,
                tokens_per_s=6000 if peer in self.live else None, contributed_round=max(0, n - 1 - i),
                bandwidth_bytes_per_s=12_500_000, link_bytes_per_s=None if i else 2.5e6, has_data=peer in self.live,
                no_data_reason="" if peer in self.live else "not tried yet", incarnation=1 + i,
                inner_loss=None if i else 2.125,
            )
            for i, peer in enumerate(PEERS[1:])
        ]  # fmt: skip

    def round(self, index: int) -> RoundRow | None:
        if not 0 <= index <= self.num_rounds:
            return None
        start, is_done = START + index * ROUND_S, index < self.num_rounds
        return RoundRow(
            round=index, attempts=1 + (index % 10 == 0), coordinator=PEERS[index % 3],
            contributors=tuple(
                Contributor(peer=peer, phase=index + 5, tokens=8192, inner_steps=STEPS, base_round=max(0, index - 1))
                for peer in PEERS if is_done
            ),
            is_contributor=is_done, entry_hash=digest(f"e{index}") if is_done else "",
            bytes_sent=1_000_000, bytes_received=1_500_000,
            next_lowrank_r=64 - min(32, index // 100), next_inner_steps=STEPS + index // 1000,
            trainer_idle_s=0.2, started_at=start, committed_at=start + 20.0 if is_done else 0.0,
            applied_at=start + 21.0 if is_done else 0.0,
            times=RoundTimes(gather_s=2.0, exchange_s=15.0 + math.sin(index), vote_s=1.0, persist_s=0.1, apply_s=1.0,
                             form_s=0.5, reduce_s=0.7),
            failures=("attempt 0: QmFakeSiteC vanished during the exchange",) if index % 10 == 0 else (),
        )  # fmt: skip

    def members(self) -> list[Member]:
        return [
            Member(
                peer_id=peer,
                name=NAMES[peer],
                state="member",
                serial="1f",
                role="contribute",
                uses=64,
                invite_expires_unix=int(START),
            )
            for peer in (ME, *self.live)
        ]

    def authorities(self) -> list[AuthorityList]:
        return [
            AuthorityList(
                number=0,
                change="",
                state="in force",
                decided_by="manifest",
                keys=("ab" * 32,),
                threshold=1,
                invites_void_from=None,
            )
        ]

    def rounds(self, first: int, limit: int) -> list[RoundRow]:
        found = (self.round(index) for index in range(first, min(first + limit, self.num_rounds + 1)))
        return [row for row in found if row is not None]

    def rounds_before(self, before: int | None, limit: int) -> list[RoundRow]:
        top = self.num_rounds + 1 if before is None else min(before, self.num_rounds + 1)
        found = (self.round(index) for index in range(top - 1, max(-1, top - 1 - limit), -1))
        return [row for row in found if row is not None]

    def losses(self) -> LossCurves:
        inner = [
            (START + step * ROUND_S / STEPS, step, 2.0 + 6.0 / (1.0 + step / 50) + 0.1 * math.sin(step))
            for step in range(0, STEPS * self.num_rounds, max(1, STEPS * self.num_rounds // 20_000))
        ]
        shared = [(START + r * ROUND_S, r, 2.1 + 6.0 / (1.0 + r / 3)) for r in range(self.num_rounds)]
        return LossCurves(inner=inner, validation=shared, sites=[self._told(i) for i in range(1, self.num_telling)])

    def _told(self, number: int) -> SiteLosses:
        """Losses that another site tells; beyond the three sites of this run there are names only."""
        peer = PEERS[number] if number < len(PEERS) else f"QmFakeSite{number}"
        points = [
            (START + r * ROUND_S + 20, r, 2.4 + number / 10 + 6.0 / (1.0 + r / 3)) for r in range(self.num_rounds)
        ]
        return SiteLosses(peer_id=peer, name=NAMES.get(peer, f"site-{number}"), points=points[-240:])

    def timeline(self) -> list[OwnSpan]:
        spans = []
        for index in range(max(0, self.num_rounds - 500), self.num_rounds):
            start = START + index * ROUND_S
            spans.append(OwnSpan("compute", start, start + 29.5, index))
            spans.append(OwnSpan("idle", start + 29.5, start + ROUND_S, index))
            spans.append(OwnSpan("exchange", start + 2, start + 17, index))
            spans.append(OwnSpan("apply", start + 20, start + 21, index))
        return spans

    def swarm_timeline(self, since: float) -> SwarmTimeline:
        own = [span for span in self.timeline() if span.end > since]
        sites = [SiteTimeline(peer_id=ME, name=NAMES[ME], is_self=True, spans=own)]
        for peer in PEERS[1:]:
            kind = "training" if peer in self.live else "silent"
            spans = [SiteSpan(kind, max(START, since), self.now, None)]
            spans += [span for span in own if span.kind == "exchange"]
            sites.append(SiteTimeline(peer_id=peer, name=NAMES[peer], is_self=False, spans=spans))
        return SwarmTimeline(start=max(START, since), end=self.now, sites=tuple(sites))

    def alerts(self) -> list[ExplainedAlert]:
        return [
            ExplainedAlert(
                code=kind.code, severity=kind.severity, text=f"made up: {kind.summary}", remedy=kind.remedy,
                since=START, summary=kind.summary, cause=kind.cause, runbook=f"#{kind.code}",
            )
            for kind in KINDS if kind.code in self.alert_codes
        ]  # fmt: skip

    def past_alerts(self) -> list[PastAlert]:
        return [
            PastAlert(
                code="clock_skew", severity="warning", text="the clock of QmFakeSiteC is 12 s off",
                since=self.now - 900, cleared_at=self.now - 300,
            ),
            PastAlert(code="disk_low", severity="critical", text="1 GB left", since=self.now - 90_000, cleared_at=None),
        ]  # fmt: skip

    def recent_events(self, limit: int) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for index in range(max(0, self.num_rounds - limit), self.num_rounds):
            kind = ("round.committed", "info") if index % 10 else ("round.abandoned", "warning")
            found.append({"time": START + index * ROUND_S, "event": kind[0], "level": kind[1], "round": index})
        return found

    def profile(self) -> ProfileStatus:
        return self.profiles.pop(0) if len(self.profiles) > 1 else self.profiles[0]

    def sample(self) -> Sample:
        return self.samples.pop(0) if len(self.samples) > 1 else self.samples[0]

    def config(self) -> ResolvedConfig:
        return ResolvedConfig(run_id="fake-0", run_directory="/run", run={}, site={"api": {}}, warnings=())

    async def log(self, before: int | None, limit: int) -> list[LogEntry]:
        top = self.num_rounds if before is None else min(before, self.num_rounds)
        found = [await self.log_entry(index) for index in range(top - 1, max(-1, top - 1 - limit), -1)]
        return [entry for entry in found if entry is not None]

    async def log_entry(self, index: int) -> LogEntry | None:
        row = self.round(index)
        if row is None or not row.entry_hash:
            return None
        return LogEntry(
            round=index, entry_hash=row.entry_hash, parent=digest(f"e{index - 1}"), state_digest=digest(f"s{index}"),
            contributors=row.contributors, votes=PEERS, lowrank_r=64, next_lowrank_r=64, next_inner_steps=STEPS,
            voted_at=row.committed_at, payload_bytes=400_000 if index % 2 else None,
        )  # fmt: skip

    async def snapshots(self) -> list[Snapshot]:
        return [
            Snapshot(
                round=self.num_rounds, total_bytes=80_000_000, anchor_sha256=digest("a"), state_digest=digest("s"),
                chain_head=digest("e"), files=("anchor.safetensors", "momentum.safetensors"),
            )
        ]  # fmt: skip

    def metrics(self) -> str:
        return "dilocoxd_height 3\n"


class FakeControl:
    """Implements api.interface.Control: remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refusal = ""

    def _note(self, *what: str) -> str:
        if self.refusal:
            raise CommandRefused(self.refusal)
        self.asked.append(what)
        return f"done: {what[0]}"

    def pause(self, reason: str) -> str:
        return self._note("pause", reason)

    def resume(self) -> str:
        return self._note("resume")

    def leave(self) -> str:
        return self._note("leave")

    def snapshot(self) -> str:
        return self._note("snapshot")

    async def profile(self, steps: int) -> str:
        return self._note("profile", str(steps))

    async def sample(self, prompt: str) -> str:
        return self._note("sample", prompt)

    async def reach(self) -> Reach:
        self._note("reach")
        return Reach(peer=PEERS[1], addresses=(TriedAddress(address="/ip4/10.0.0.1/tcp/31337", ok=True, error=""),))

    async def ping(self, site: str) -> Ping:
        self._note("ping", site)
        return Ping(
            peer_id=PEERS[1], name=NAMES[PEERS[1]], round_trip_s=0.0123, worst_round_trip_s=0.04, is_direct=False,
            address="/ip4/10.0.0.9/tcp/31337/p2p-circuit", clock_offset_s=-0.25, download_bytes_per_s=2.5e6,
            upload_bytes_per_s=None,
        )  # fmt: skip

    def evict(self, revocation: str) -> str:
        return self._note("evict", revocation)

    def vote_eviction(self, site: str) -> str:
        return self._note("vote-eviction", site)

    def adopt(self, target: str) -> str:
        return self._note("adopt", target)

    def change_authorities(self, change: str) -> str:
        return self._note("change-authorities", change)

    def vote_authorities(self, terms: str) -> str:
        return self._note("vote-authorities", terms)

    async def connect(self, address: str) -> str:
        return self._note("connect", address)

    async def disconnect(self, site: str) -> str:
        return self._note("disconnect", site)

    def set_log_level(self, level: Level) -> str:
        return self._note("log-level", level)


async def main(port: int, num_rounds: int) -> None:
    """Serve until interrupted; one more round every ten seconds."""
    view = FakeView(num_rounds)
    view.is_ready, view.state, view.waiting_for = True, "training", ""
    async with serve_api(view, FakeControl(), ApiSection(port=port), token="0123456789abcdef") as (host, bound):
        print(f"http://{host}:{bound}", flush=True)
        while True:
            await asyncio.sleep(10)
            view.num_rounds += 1
            view.emit(event="round.committed", round=view.num_rounds - 1)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
