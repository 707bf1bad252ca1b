"""Exact invariants of ALGORITHMS section 5 on the real codecs, reduce, feedback and outer step (I1-I5, I8, I9)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.codec import NotEncodableError
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import outer_from_name
from tests.reference.engine import Engine
from tests.reference.phases import Phases
from tests.reference.stability import CONTRACTIONS, arrival_limit, delayed_limit, sync_limit
from tests.unit.compress.cases import VARIANTS, make
from tests.unit.outer.toys import engine, halve, nesterov, phase_starts

FP32_TOLERANCE = 1e-6
"""Relative: sums of a few dozen fp32 roundings."""
PRINTED = 5.1e-7
"""The vectors of ALGORITHMS are printed with six decimals; fp32 adds less."""
SITES = ("a", "b", "c", "d")

I5_VECTORS = [
    ("none", 1, 0.4, 0.9, [1, 0.62, 0.2224, -0.108352, -0.324823, -0.415718, -0.398018]),
    ("phase", 1, 0.4, 0.9, [1, 1, 0.62, 0.078, -0.4654, -0.8725, -1.047998, -0.958168]),
    ("phase", 1, 0.1, 0.9, [1, 1, 0.905, 0.7695, 0.606575, 0.427565, 0.243459]),
    ("phase", 1, 1.0, 0.0, [1, 1, 0.5, 0, -0.25, -0.25, -0.125, 0]),
    ("eager", 1, 0.4, 0.9, [1, 0.62, 0.2224, -0.108352, -0.324823, -0.415718, -0.398018]),
    ("eager", 2, 0.4, 0.9, [1, 0.81, 0.3851, -0.061479, -0.417329, -0.617495, -0.64412]),
    ("eager", 4, 0.4, 0.9, [1, 0.905, 0.493525, -0.005887, -0.45107, -0.740844]),
]


@pytest.mark.parametrize(("delay", "num_sites", "lr", "momentum", "expected"), I5_VECTORS)
def test_i5_vectors(delay: str, num_sites: int, lr: float, momentum: float, expected: list[float]) -> None:
    starts = phase_starts(nesterov(lr, momentum), delay, num_sites, len(expected))  # type: ignore[arg-type]
    assert starts == pytest.approx(expected, abs=PRINTED)


def test_i5_boot_rule_is_not_the_literal_algorithm() -> None:
    """Literal Algorithm 2 would start phase 1 from the locally trained 0.5 and then follow 0.12, -0.232."""
    starts = phase_starts(nesterov(0.4, 0.9), "phase", 1, 4)
    assert starts[1] == 1.0
    assert abs(starts[2] - 0.12) > 0.4


class Quadratic:
    """f_i(x) = 0.5 sum h (x - c_i)^2 with its own centre per site; plain SGD inside."""

    def __init__(self, numel: int, lr: float, is_shared: bool = False) -> None:
        generator = torch.Generator().manual_seed(11)
        self.curvature = torch.rand(numel, generator=generator) + 0.5
        self.centres = {site: torch.randn(numel, generator=generator) for site in SITES}
        if is_shared:
            self.centres = dict.fromkeys(SITES, self.centres["a"])
        self.lr = lr

    def __call__(self, site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
        for _ in range(num_steps):
            theta.sub_((theta - self.centres[site]) * self.curvature * self.lr)


def test_i1_one_step_averaging_is_data_parallel_sgd() -> None:
    problem = Quadratic(5000, 0.1)
    phases = Phases(engine(torch.zeros(5000), SITES, outer_from_name("sgd", 1.0)), problem, "none")
    reference = torch.zeros(5000, dtype=torch.float64)
    for _ in range(50):
        phases.run_phase(1)
        gradients = [(reference - problem.centres[site].double()) * problem.curvature.double() for site in SITES]
        reference = reference - 0.1 * torch.stack(gradients).mean(dim=0)
    torch.testing.assert_close(phases.engine.anchor.double(), reference, rtol=FP32_TOLERANCE, atol=FP32_TOLERANCE)


@pytest.mark.parametrize("inner_steps", [1, 7])
def test_i2_one_site_with_outer_lr_one_is_local_training(inner_steps: int) -> None:
    problem = Quadratic(5000, 0.05)
    phases = Phases(engine(torch.ones(5000), ["a"], outer_from_name("sgd", 1.0)), problem, "none")
    local = torch.ones(5000)
    for _ in range(20):
        phases.run_phase(inner_steps)
        problem("a", local, 0, inner_steps)
    torch.testing.assert_close(phases.engine.anchor, local, rtol=FP32_TOLERANCE, atol=FP32_TOLERANCE)


@pytest.mark.parametrize("codec", list(VARIANTS))
@pytest.mark.parametrize("num_sites", [2, 4])
def test_i3_identical_sites_are_one_site_exactly(codec: str, num_sites: int) -> None:
    """Exact for a power of two of sites: their weights and products are exact; three differ by a rounding."""
    anchors = []
    for count in (1, num_sites):
        problem = Quadratic(9000, 0.1, is_shared=True)
        phases = Phases(engine(torch.zeros(9000), SITES[:count], nesterov(0.4, 0.9), make(codec)), problem, "phase")
        for _ in range(6):
            phases.run_phase(3)
        anchors.append(phases.engine.anchor)
    assert torch.equal(anchors[0], anchors[1])
    assert float(anchors[0].norm()) > 1


@pytest.mark.parametrize("delay", ["none", "phase", "arrival", "eager"])
def test_i4_order_of_peers_does_not_change_a_bit(delay: str) -> None:
    anchors = []
    for order in (SITES, SITES[::-1], ("c", "a", "d", "b")):
        problem = Quadratic(9000, 0.1)
        phases = Phases(engine(torch.zeros(9000), order, nesterov(0.3, 0.8), make("int4")), problem, delay)  # type: ignore[arg-type]
        tokens = {site: 7 + 3 * ord(site) for site in order}
        for _ in range(5):
            phases.run_phase(3, tokens)
        anchors.append(phases.engine.anchor)
    assert torch.equal(anchors[0], anchors[1])
    assert torch.equal(anchors[0], anchors[2])


def run_rounds(codec: str, feedback: ErrorFeedback, rounds: int, numel: int = 6000) -> tuple[Engine, Tensor, Tensor]:
    """Random updates through the engine: (engine, sum of mean u, sum of Delta) in float64."""
    loop = engine(torch.zeros(numel), SITES, outer_from_name("sgd", 1.0), make(codec), feedback)
    generator = torch.Generator().manual_seed(3)
    sum_u, sum_delta = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    for _ in range(rounds):
        updates = {site: torch.randn(numel, generator=generator) * 1e-3 for site in SITES}
        loop.commit(loop.offer(updates))
        sum_u += torch.stack(list(updates.values())).double().mean(dim=0)
        sum_delta += loop.delta.double()
    return loop, sum_u, sum_delta


def kept(loop: Engine) -> Tensor:
    return torch.stack(list(loop.feedback.values())).double().mean(dim=0) + loop.owner_residual.double()


@pytest.mark.parametrize("codec", list(VARIANTS))
@pytest.mark.parametrize("mode", ["local", "paper"])
def test_i8_telescoping(codec: str, mode: str) -> None:
    """What was applied plus what is still kept (sites and owner) is everything that was ever offered."""
    loop, sum_u, sum_delta = run_rounds(codec, ErrorFeedback(mode), rounds=30)  # type: ignore[arg-type]
    if mode == "local":
        total = sum_delta + kept(loop)
    else:
        total = sum_delta + torch.stack(list(loop.feedback.values())).double().mean(dim=0)
    scale = float(sum_u.norm())
    assert float((total - sum_u).norm()) <= 1e-5 * scale


def test_i8_with_decay() -> None:
    loop = engine(torch.zeros(3000), SITES, outer_from_name("sgd", 1.0), make("int4"), ErrorFeedback("local", 0.5))
    generator = torch.Generator().manual_seed(4)
    for _ in range(10):
        before = torch.stack(list(loop.feedback.values())).mean(dim=0)
        owner_before = loop.owner_residual.clone()
        updates = {site: torch.randn(3000, generator=generator) for site in SITES}
        loop.commit(loop.offer(updates))
        after = torch.stack(list(loop.feedback.values())).mean(dim=0) + loop.owner_residual - owner_before
        mean_u = torch.stack(list(updates.values())).mean(dim=0)
        torch.testing.assert_close(after, 0.5 * before + mean_u - loop.delta, rtol=1e-5, atol=1e-5)


def test_i9_feedback_is_bounded_local_and_grows_in_paper_mode() -> None:
    """int4 in blocks of 64 on Gaussian values: relative error about 0.11 (ALGORITHMS 1.3 b)."""
    norms = {}
    for mode in ("local", "paper"):
        loop = engine(
            torch.zeros(512),
            SITES,
            outer_from_name("sgd", 1.0),
            codec_from_name("int4", block=64),
            ErrorFeedback(mode),  # type: ignore[arg-type]
        )
        generator = torch.Generator().manual_seed(6)
        largest = 0.0
        for step in range(500):
            updates = {site: torch.randn(512, generator=generator) for site in SITES}
            loop.commit(loop.offer(updates))
            largest = max(largest, *(float(u.norm()) for u in updates.values()))
            if mode == "local" and step % 10 == 9:
                w = 0.14
                assert max(float(e.norm()) for e in loop.feedback.values()) <= w / (1 - w) * largest, step
        norms[mode] = float(loop.feedback["a"].norm()) / largest
    assert norms["local"] < 0.2
    assert norms["paper"] > 20 * norms["local"]


def test_f2_excluded_site_keeps_everything_and_delivers_it_later() -> None:
    loop = engine(torch.zeros(5000), SITES, outer_from_name("sgd", 1.0), make("int4"))
    generator = torch.Generator().manual_seed(8)
    for step in range(6):
        updates = {site: torch.randn(5000, generator=generator) for site in SITES}
        d_of_b = loop.feedback["b"] + updates["b"]
        others = {site: loop.feedback[site].clone() for site in SITES}
        offer = loop.offer(updates)
        excluded = frozenset({"b"}) if step % 2 else frozenset()
        loop.commit(offer, excluded)
        if excluded:
            assert torch.equal(loop.feedback["b"], d_of_b)
            assert not torch.equal(loop.feedback["a"], others["a"])


def test_void_round_changes_nothing_shared() -> None:
    loop = engine(torch.ones(5000), SITES, nesterov(0.4, 0.9), make("int8"))
    loop.commit(loop.offer({site: torch.ones(5000) for site in SITES}))
    anchor, slot = loop.anchor.clone(), loop.slots[0].clone()
    loop.commit(loop.offer({site: torch.ones(5000) for site in SITES}), excluded=frozenset(SITES))
    assert torch.equal(loop.anchor, anchor)
    assert torch.equal(loop.slots[0], slot)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e20])
def test_phase_with_values_that_are_not_finite_is_not_offered_and_named(bad: float) -> None:
    loop = engine(torch.ones(9000), SITES, nesterov(0.4, 0.9), make("int4"))
    loop.commit(loop.offer({site: torch.rand(9000) for site in SITES}))
    kept_before = {site: e.clone() for site, e in loop.feedback.items()}
    updates = {site: torch.ones(9000) for site in SITES}
    updates["c"][8500] = bad
    with pytest.raises(NotEncodableError, match=r"flat\.weight"):
        loop.offer(updates)
    assert all(torch.equal(loop.feedback[site], kept_before[site]) for site in SITES)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("delay", ["none", "phase"])
def test_stability_thresholds(momentum: float, delay: str) -> None:
    """lambda = 1 (inner training goes all the way): converges at 0.9x the limit, diverges at 1.1x."""
    limit = sync_limit(momentum) if delay == "none" else delayed_limit(momentum)

    def to_zero(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
        theta.zero_()

    for factor, is_stable in ((0.9, True), (1.1, False)):
        phases = Phases(engine(torch.ones(1), ["a"], nesterov(factor * limit, momentum)), to_zero, delay)  # type: ignore[arg-type]
        for _ in range(400):
            phases.run_phase(1)
            if abs(float(phases.engine.anchor)) > 1e6:
                break
        assert (abs(float(phases.engine.anchor)) < 1e-2) == is_stable


@pytest.mark.parametrize("tau", [0, 4, 10, 20])
def test_stability_threshold_of_merge_on_arrival(tau: int) -> None:
    """Phases of 20 steps; each element contracts at its own rate, from slow to stiff."""
    limit = arrival_limit(0.8, tau / 20)
    rates = torch.tensor([(1 - c) ** (1 / 20) for c in CONTRACTIONS])

    def contract(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
        for _ in range(num_steps):
            theta.mul_(rates)

    for factor, is_stable in ((0.9, True), (1.1, False)):
        phases = Phases(
            engine(torch.ones(rates.numel()), ["a"], nesterov(factor * limit, 0.8)), contract, "arrival", tau
        )
        for _ in range(300):
            phases.run_phase(20)
            if float(phases.engine.anchor.abs().amax()) > 1e6:
                break
        assert (float(phases.engine.anchor.abs().amax()) < 0.1) == is_stable


def test_i6_eager_with_one_site_is_synchronous() -> None:
    assert phase_starts(nesterov(0.4, 0.9), "eager", 1, 12) == pytest.approx(
        phase_starts(nesterov(0.4, 0.9), "none", 1, 12), abs=FP32_TOLERANCE
    )


def test_i7_eager_is_shared_anchor_plus_overlay() -> None:
    """Against the per-site recursion of Eager Updates (arXiv 2502.12996): Delta^{t-1} + (u^t - u^{t-1}) / M."""
    problem, lr, momentum = Quadratic(200, 0.3), 0.3, 0.5
    phases = Phases(engine(torch.zeros(200), SITES, nesterov(lr, momentum)), problem, "eager")
    x = {site: torch.zeros(200, dtype=torch.float64) for site in SITES}
    m = {site: torch.zeros(200, dtype=torch.float64) for site in SITES}
    last = {site: torch.zeros(200, dtype=torch.float64) for site in SITES}
    for _ in range(12):
        phases.run_phase(2)
        mean_last = torch.stack(list(last.values())).mean(dim=0)
        for site in SITES:
            theta = x[site].clone()
            problem(site, theta, 0, 2)
            update = x[site] - theta
            eager = mean_last + (update - last[site]) / len(SITES)
            last[site] = update
            m[site] = momentum * m[site] + eager
            x[site] = x[site] - lr * (eager + momentum * m[site])
            state = phases.sites[site]
            assert state.overlay is not None
            assert torch.equal(state.theta, phases.engine.anchor + state.overlay)
            torch.testing.assert_close(state.theta.double(), x[site], rtol=1e-5, atol=1e-5)


def test_arrival_with_tau_zero_is_synchronous_and_every_step_is_offered_once() -> None:
    sync = Phases(engine(torch.zeros(300), SITES, nesterov(0.4, 0.8)), Quadratic(300, 0.1), "none")
    merged = Phases(engine(torch.zeros(300), SITES, nesterov(0.4, 0.8)), Quadratic(300, 0.1), "arrival", 0)
    for _ in range(8):
        sync.run_phase(5)
        merged.run_phase(5)
    merged.finish()
    torch.testing.assert_close(sync.engine.anchor, merged.engine.anchor, rtol=1e-5, atol=1e-5)

    def march(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
        theta.sub_(float(num_steps))

    for tau in (0, 2, 5, {"a": 1, "b": 4, "c": 5, "d": 0}):
        loop = Phases(engine(torch.zeros(2), SITES, outer_from_name("sgd", 1.0)), march, "arrival", tau)
        for _ in range(7):
            loop.run_phase(5)
        loop.finish()
        assert loop.engine.anchor.tolist() == [-35.0, -35.0]


def test_halving_needs_no_engine_to_be_right() -> None:
    theta = torch.ones(1)
    halve("a", theta, 0, 3)
    assert float(theta) == 0.125
