"""Rounds through real outer workers: equal bits, the outer recursions of ALGORITHMS.md section 5, nothing lost."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from dilocoxd.wire.local.outer_worker import CopyBase, FormContribution, LoadState, OpenState, Settle
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
from tests.harness.outer_worker.forks import Forks
from tests.harness.outer_worker.swarm import Site, commit, exchange, form, gather, take_anchor, write_state

pytestmark = pytest.mark.processes

SYNC_VECTOR = (1, 0.62, 0.2224, -0.108352, -0.324823, -0.415718, -0.398018)
DELAY_VECTOR = (1, 1, 0.62, 0.078, -0.4654, -0.8725, -1.047998, -0.958168)
DELAY_LOW_VECTOR = (1, 1, 0.905, 0.7695, 0.606575, 0.427565, 0.243459)
DELAY_PLAIN_VECTOR = (1, 1, 0.5, 0, -0.25, -0.25, -0.125, 0)
TELESCOPE_TOLERANCE = 1e-5
"""Relative; sums of a dozen fp32 roundings."""


@pytest.fixture(scope="module", autouse=True)
def launcher(forks: Forks) -> Iterator[None]:
    """What forks all workers of this file."""
    LAUNCHERS.append(forks)
    yield
    LAUNCHERS.clear()


LAUNCHERS: list[Forks] = []


@contextlib.contextmanager
def open_sites(directory: Path, names: str, **changes: dict[str, Any]) -> Iterator[list[Site]]:
    """One running worker per letter of `names`, with the genesis state loaded."""
    manifest = tiny_manifest(**changes)
    with contextlib.ExitStack() as stack:
        sites = []
        for name in names:
            worker = stack.enter_context(OuterDaemon(directory / name, manifest, LAUNCHERS[0].outer))
            worker.start()
            worker.do(OpenState)
            worker.do(LoadState, "")
            sites.append(Site(f"Qm{name}", worker))
        yield sites


def gradients(site: Site, round_index: int) -> torch.Tensor:
    """A pseudo-gradient that depends on the site's name and the round only."""
    generator = torch.Generator().manual_seed(hash_of(site.peer) * 1000 + round_index)
    values = torch.randn(site.worker.floats(local_buffers.ANCHOR).numel(), generator=generator)
    return values * (1.0 + round_index % 3)


def hash_of(text: str) -> int:
    return sum(text.encode())


def run_rounds(sites: list[Site], rounds: int, tokens: dict[str, int], owners: tuple[int, ...]) -> list[bytes]:
    """Rounds with random pseudo-gradients; all sites must agree after each. Returns the state digests."""
    digests = []
    for index in range(rounds):
        for site in sites:
            form(site, gradients(site, index), index)
        answers = commit(sites, index, index, exchange(sites, owners, tokens))
        assert len({answer.state_digest for answer in answers}) == 1
        assert len({site.worker.read(local_buffers.ANCHOR) for site in sites}) == 1
        assert {answer.round for answer in answers} == {index + 1}
        digests.append(answers[0].state_digest)
        take_anchor(sites)
    return digests


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "int4", "topk", "lowrank"])
def test_three_sites_hold_the_same_bits_and_lose_nothing(tmp_path: Path, codec: str) -> None:
    """ALGORITHMS I8: with outer SGD at lr 1, x_0 - x_T is the sum of the committed means."""
    strategy: dict[str, Any] = {"codec": codec}
    if codec == "lowrank":
        strategy = {"codec": "int4", "transform": "lowrank", "lowrank_r": 4}
    changes: dict[str, Any] = {"outer": {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0}, "strategy": strategy}
    with open_sites(tmp_path, "abc", **changes) as sites:
        before = sites[0].worker.floats(local_buffers.ANCHOR).double()
        run_rounds(sites, 6, {}, (0, 1, 2))
        moved = before - sites[0].worker.floats(local_buffers.ANCHOR).double()
        kept = sum(site.worker.floats(local_buffers.FEEDBACK).double() for site in sites) / len(sites)
        kept += sum(site.worker.floats(local_buffers.OWNER_FEEDBACK).double() for site in sites)
        offered = sum(gradients(site, index).double() for site in sites for index in range(6)) / len(sites)
        assert torch.linalg.norm(moved + kept - offered) <= TELESCOPE_TOLERANCE * torch.linalg.norm(offered)
        if codec not in ("fp32", "fp16"):
            assert torch.linalg.norm(kept) > 50 * TELESCOPE_TOLERANCE * torch.linalg.norm(offered)


@pytest.mark.parametrize("codec", ["int4", "int2", "topk", "lowrank"])
def test_where_everybody_sums_all_get_the_same_bits_and_nothing_is_lost(tmp_path: Path, codec: str) -> None:
    """X11: no owner keeps a residual; what the encoding of a mean loses comes with the next contributions."""
    strategy: dict[str, Any] = {"codec": codec}
    if codec == "lowrank":
        strategy = {"codec": "int4", "transform": "lowrank", "lowrank_r": 4}
    changes: dict[str, Any] = {"outer": {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0}, "strategy": strategy}
    tokens = {"Qma": 100, "Qmb": 300, "Qmc": 77}
    weights = {**tokens, "Qmb": 200}  # twice the median at most (X2.5)
    with open_sites(tmp_path, "abc", reduction={"reducer": "gather"}, **changes) as sites:
        before = sites[0].worker.floats(local_buffers.ANCHOR).double()
        for index in range(5):
            for site in sites:
                form(site, gradients(site, index), index)
            commit(sites, index, index, gather(sites, tokens))
        moved = before - sites[0].worker.floats(local_buffers.ANCHOR).double()
        assert len({site.worker.read(local_buffers.ANCHOR) for site in sites}) == 1
        parts = {site.peer: weights[site.peer] / sum(weights.values()) for site in sites}
        kept = sum(parts[site.peer] * site.worker.floats(local_buffers.FEEDBACK).double() for site in sites)
        offered = sum(parts[site.peer] * gradients(site, index).double() for site in sites for index in range(5))
        assert torch.linalg.norm(moved + kept - offered) <= TELESCOPE_TOLERANCE * torch.linalg.norm(offered)
        assert torch.linalg.norm(kept) > 50 * TELESCOPE_TOLERANCE * torch.linalg.norm(offered)


def test_owner_without_feedback_gives_what_anybody_computes_of_the_shares(tmp_path: Path) -> None:
    """X12: whoever gets the shares of a segment makes the owner's bytes, in every round."""
    with open_sites(tmp_path, "abc", reduction={"owner_feedback": "none"}) as sites:
        for index in range(3):
            for site in sites:
                form(site, gradients(site, index), index)
            owned = exchange(sites, (0, 1, 2), {})
            results = sites[0].worker.read(local_buffers.RESULT)
            assert len({site.worker.read(local_buffers.RESULT) for site in sites}) == 1
            gather(sites, {})
            assert sites[1].worker.read(local_buffers.RESULT) == results
            commit(sites, index, index, owned)
            take_anchor(sites)


@pytest.mark.parametrize("transform", ["identity", "lowrank"])
def test_what_a_former_owner_owed_the_mean_comes_through_its_own_feedback_once(tmp_path: Path, transform: str) -> None:
    """ALGORITHMS I8 while the owners change every round: nothing is lost or doubled, and nobody keeps residuals of what
    is not theirs any more."""
    strategy = {"codec": "int4", "transform": transform} | ({"lowrank_r": 4} if transform == "lowrank" else {})
    changes: dict[str, Any] = {"outer": {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0}, "strategy": strategy}
    tokens = {"Qma": 100, "Qmb": 180, "Qmc": 77}
    turns = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2), (0, 0, 1, 2), (2, 1, 0))
    with open_sites(tmp_path, "abc", **changes) as sites:
        before = sites[0].worker.floats(local_buffers.ANCHOR).double()
        for index, owners in enumerate(turns):
            for site in sites:
                form(site, gradients(site, index), index)
            commit(sites, index, index, exchange(sites, owners, tokens))
        moved = before - sites[0].worker.floats(local_buffers.ANCHOR).double()
        total = sum(tokens.values())
        shares = {site.peer: tokens[site.peer] / total for site in sites}
        kept = sum(shares[site.peer] * site.worker.floats(local_buffers.FEEDBACK).double() for site in sites)
        residuals = torch.stack([site.worker.floats(local_buffers.OWNER_FEEDBACK).double() for site in sites])
        offered = sum(
            shares[site.peer] * gradients(site, index).double() for site in sites for index in range(len(turns))
        )
        assert torch.linalg.norm(moved + kept + residuals.sum(0) - offered) <= TELESCOPE_TOLERANCE * torch.linalg.norm(
            offered
        )
        assert torch.linalg.norm(residuals) > 0
        assert bool(((residuals != 0).sum(0) <= 1).all()), "two sites owe the mean the same value"
        for number in range(len(sites)):
            for segment in make_plan(tiny_manifest(**changes)).segments:
                owner = turns[-1][segment.index % len(turns[-1])]
                is_clear = bool((residuals[number, segment.start : segment.stop] == 0).all())
                assert owner == number or is_clear


def test_an_excluded_contribution_comes_with_the_next_one(tmp_path: Path) -> None:
    """ALGORITHMS F2: e = d after the exclusion, and the telescoping identity still holds."""
    changes = {"outer": {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0}}
    with open_sites(tmp_path, "ab", **changes) as sites:
        left_out, other = sites[1], sites[0]
        before = other.worker.floats(local_buffers.ANCHOR).double()
        form(other, gradients(other, 0), 0)
        form(left_out, gradients(left_out, 0), 0)
        owned = exchange([other], (0,), {})
        left_out.worker.write(local_buffers.RESULT, other.worker.read(local_buffers.RESULT))
        left_out.worker.do(Settle, 0, 0, False, ())
        assert torch.equal(left_out.worker.floats(local_buffers.FEEDBACK), gradients(left_out, 0))
        other.worker.do(Settle, 0, 0, True, owned[other.peer])
        for site in sites:
            site.worker.do(local.ApplyResult, 0, "", 0, 0)
        first_rest = other.worker.floats(local_buffers.FEEDBACK).double()
        for site in sites:
            form(site, gradients(site, 1), 1)
        commit(sites, 1, 1, exchange(sites, (0, 1), {}))
        moved = before - other.worker.floats(local_buffers.ANCHOR).double()
        moved += sum(site.worker.floats(local_buffers.OWNER_FEEDBACK).double() for site in sites)
        alone = gradients(other, 0).double() - first_rest
        shared = first_rest + gradients(other, 1).double()
        shared += gradients(left_out, 0).double() + gradients(left_out, 1).double()
        shared -= sum(site.worker.floats(local_buffers.FEEDBACK).double() for site in sites)
        offered = alone + shared / 2
        assert torch.linalg.norm(moved - offered) <= TELESCOPE_TOLERANCE * torch.linalg.norm(offered)


@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_identical_sites_are_as_good_as_one(tmp_path: Path, codec: str) -> None:
    """ALGORITHMS I3: M sites with the same data give the bits of one site."""
    finals = set()
    for names in ("a", "aa", "aaaa"):
        with open_sites(tmp_path / f"{len(names)}", names[:1], strategy={"codec": codec}) as single:
            sites = single * 1
            digests = run_rounds_of_twins(sites[0], len(names), 4)
            finals.add(digests[-1])
    assert len(finals) == 1


def run_rounds_of_twins(site: Site, count: int, rounds: int) -> list[bytes]:
    """One worker that plays `count` identical sites: all shares hold the same payload."""
    digests = []
    described = site.worker.described
    assert described is not None
    lengths = described.payload_bytes[0]
    for index in range(rounds):
        form(site, gradients(site, index), index)
        payload = site.worker.read(local_buffers.OUTBOX)
        for slot in range(count - 1):
            site.worker.write(local_buffers.INBOX, payload, slot * len(payload))
        shares = tuple(local.Share(slot, 1000) for slot in range(-1, count - 1))
        for segment in range(len(lengths)):
            site.worker.do(local.Reduce, 0, segment, shares, 0)
        owned = tuple(local.OwnedSegment(0, segment, shares) for segment in range(len(lengths)))
        digests.append(commit([site], index, index, {site.peer: owned})[0].state_digest)
    return digests


def test_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    """ALGORITHMS I4: sums run in sorted peer order, whatever slots payloads came into, whoever started first."""
    finals = set()
    for number, (names, slots) in enumerate([("abc", (0, 1, 2)), ("cab", (3, 0, 1)), ("bca", (2, 3, 0))]):
        with open_sites(tmp_path / str(number), names) as sites:
            for site in sites:
                site.slots = dict(zip(("Qma", "Qmb", "Qmc"), slots, strict=True))
            finals.add(run_rounds(sites, 3, {"Qma": 100, "Qmb": 300, "Qmc": 77}, (0, 1, 2))[-1])
    assert len(finals) == 1


def scalar_rounds(site: Site, steps: int, *, is_delayed: bool) -> list[float]:
    """Anchor taken by the trainer at each phase when u = 0.5 * base (ALGORITHMS 5.1, I5)."""
    taken = [1.0]
    site.worker.do(CopyBase)
    for index in range(steps):
        form(site, 0.5 * site.worker.floats(local_buffers.PHASE), index)
        if is_delayed:
            # The trainer takes the anchor at the boundary, before this round's entry exists (boot: still x_0).
            take_anchor([site])
        commit([site], index, index, exchange([site], (0,), {}))
        if not is_delayed:
            take_anchor([site])
        base = site.worker.floats(local_buffers.PHASE)
        assert (base == base[0]).all()
        taken.append(float(base[0]))
    return taken


@pytest.mark.parametrize(
    ("outer", "is_delayed", "expected"),
    [
        ({"optimizer": "nesterov", "lr": 0.4, "momentum": 0.9}, False, SYNC_VECTOR),
        ({"optimizer": "nesterov", "lr": 0.4, "momentum": 0.9}, True, DELAY_VECTOR),
        ({"optimizer": "nesterov", "lr": 0.1, "momentum": 0.9}, True, DELAY_LOW_VECTOR),
        ({"optimizer": "sgd", "lr": 1.0, "momentum": 0.0}, True, DELAY_PLAIN_VECTOR),
    ],
    ids=["sync", "delay", "delay-low-lr", "delay-sgd"],
)
def test_outer_recursions(tmp_path: Path, outer: dict[str, Any], is_delayed: bool, expected: tuple[float, ...]) -> None:
    """ALGORITHMS I5 with every parameter of the model at 1."""
    changes = {"outer": outer, "strategy": {"codec": "fp32"}}
    with open_sites(tmp_path, "a", **changes) as (site,):
        plan = make_plan(tiny_manifest(**changes))
        write_state(tmp_path / "ones", plan, 0, torch.ones(plan.layout.numel))
        site.worker.do(LoadState, str(tmp_path / "ones"))
        taken = scalar_rounds(site, len(expected) - 1, is_delayed=is_delayed)
        for have, want in zip(taken, expected, strict=True):
            assert math.isclose(have, want, rel_tol=1e-5, abs_tol=2e-6), (taken, expected)


def test_nan_is_named_and_changes_nothing(tmp_path: Path) -> None:
    with open_sites(tmp_path, "a") as (site,):
        form(site, gradients(site, 0), 0)
        commit([site], 0, 0, exchange([site], (0,), {}))
        before = site.worker.read(local_buffers.FEEDBACK), site.worker.read(local_buffers.OUTBOX)
        plan = make_plan(tiny_manifest())
        span = plan.layout.span("model.layers.1.self_attn.o_proj.weight")
        values = gradients(site, 1)
        values[span.stop - 1] = math.nan
        site.worker.write_floats(local_buffers.PHASE, values)
        formed = site.worker.do(FormContribution, 1, 0)
        assert not formed.is_finite
        assert formed.detail == "model.layers.1.self_attn.o_proj.weight"
        assert (site.worker.read(local_buffers.FEEDBACK), site.worker.read(local_buffers.OUTBOX)) == before
        form(site, gradients(site, 2), 2)


def test_bad_payloads_are_refused_and_named(tmp_path: Path) -> None:
    with open_sites(tmp_path, "a") as (site,):
        form(site, gradients(site, 0), 0)
        worker = site.worker
        garbage = b"\xff" * len(worker.read(local_buffers.OUTBOX))
        worker.write(local_buffers.INBOX, garbage, 2 * len(garbage))
        shares = (local.Share(-1, 10), local.Share(2, 10))
        answer = worker.ask(local.Reduce, 0, 1, shares, 0)
        assert (type(answer), answer.kind, answer.detail) == (WorkerFailed, "bad_payload", "2")
        worker.write(local_buffers.RESULT, garbage)
        before = worker.read(local_buffers.ANCHOR)
        for request in ((local.ApplyResult, 0, "", 0, 0), (local.PreparePass, 1, 0)):
            answer = worker.ask(*request)
            assert (answer.kind, "segment 0" in answer.detail) == ("bad_payload", True)
        assert worker.read(local_buffers.ANCHOR) == before
        commit([site], 0, 0, exchange([site], (0,), {}))
        worker.do(local.PreparePass, 1, 0)


def test_requests_out_of_turn_are_refused(tmp_path: Path) -> None:
    with open_sites(tmp_path, "a") as (site,):
        form(site, gradients(site, 5), 5)
        share = (local.Share(-1, 10),)
        for request in (
            (FormContribution, 6, 0),
            (Settle, 4, 0, True, ()),
            (local.ApplyResult, 3, "", 0, 0),
            (local.Reduce, 1, 0, share, 0),
            (local.Reduce, 0, 99, share, 0),
            (local.Reduce, 0, 0, (local.Share(4, 10),), 0),
            (local.PreparePass, 0, 0),
        ):
            answer = site.worker.ask(*request)
            assert isinstance(answer, WorkerFailed), request
            assert answer.kind == "bad_request", answer
        answer = site.worker.ask(local.ApplyResult, 0, str(tmp_path / "nowhere"), 0, 0)
        assert answer.kind == "store"
