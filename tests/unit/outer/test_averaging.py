"""Outer steps and averaging commute (ALGORITHMS I12, as far as it concerns this project, which has no gossip reducer).

If every worker steps its own state and the states are mixed by any doubly stochastic matrix, their mean moves as one
shared state moves with the mean pseudo-gradient. It is why a late contribution may be averaged in a later round."""

import pytest
import torch
from torch import Tensor

from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name

WORKERS, VALUES, ROUNDS = 8, 64, 12
LINEAR = [("sgd", 0.75, 0.0), ("heavy_ball", 0.25, 0.75), ("nesterov", 0.25, 0.875)]


def stepped(optimizer: OuterOptimizer, state: Tensor, g: Tensor, outer_step: int) -> None:
    """state: float64[1 + slots, values], changed in place."""
    optimizer.step_(state[0], list(state[1 : 1 + optimizer.num_slots]), g, outer_step)


def matchings(generator: torch.Generator) -> Tensor:
    """A random perfect matching as a mixing matrix: everybody averages with one other."""
    order = torch.randperm(WORKERS, generator=generator)
    mixing = torch.zeros(WORKERS, WORKERS, dtype=torch.float64)
    for a, b in order.view(-1, 2).tolist():
        mixing[a, [a, b]] = mixing[b, [a, b]] = 0.5
    return mixing


@pytest.mark.parametrize(("name", "lr", "momentum"), LINEAR)
@pytest.mark.parametrize("how", ["pairs", "ring", "complete", "alone"])
def test_mean_of_the_workers_moves_as_the_shared_state_does(name: str, lr: float, momentum: float, how: str) -> None:
    generator = torch.Generator().manual_seed(7)
    optimizer = outer_from_name(name, lr, momentum)
    workers = torch.randn(WORKERS, 2, VALUES, dtype=torch.float64, generator=generator)
    workers[:, 1] = 0
    shared, alone = workers.mean(0), workers.clone()
    eye = torch.eye(WORKERS, dtype=torch.float64)
    fixed = {
        "ring": (eye + eye.roll(1, 0) + eye.roll(-1, 0)) / 3,
        "complete": torch.full_like(eye, 1 / WORKERS),
        "alone": eye,
    }
    for outer_step in range(ROUNDS):
        gradients = torch.randn(WORKERS, VALUES, dtype=torch.float64, generator=generator)
        mixing = fixed[how] if how in fixed else matchings(generator)
        stepped(optimizer, shared, gradients.mean(0), outer_step)
        for worker, single, g in zip(workers, alone, gradients, strict=True):
            stepped(optimizer, worker, g, outer_step)
            stepped(optimizer, single, g, outer_step)
        workers = torch.einsum("wv,vsn->wsn", mixing, workers)
        torch.testing.assert_close(workers.mean(0), shared, rtol=1e-12, atol=1e-12)
        if how == "complete":
            torch.testing.assert_close(workers, shared.expand_as(workers), rtol=1e-12, atol=1e-12)
        if how == "alone":
            assert torch.equal(workers, alone), "nothing of the others came in"


def test_adam_is_not_linear_and_so_no_worker_may_run_it_alone() -> None:
    generator = torch.Generator().manual_seed(7)
    optimizer = outer_from_name("adam", 0.5, 0.0)
    gradients = torch.randn(WORKERS, VALUES, dtype=torch.float64, generator=generator)
    shared = torch.zeros(3, VALUES, dtype=torch.float64)
    workers = torch.zeros(WORKERS, 3, VALUES, dtype=torch.float64)
    stepped(optimizer, shared, gradients.mean(0), 0)
    for worker, g in zip(workers, gradients, strict=True):
        stepped(optimizer, worker, g, 0)
    assert (workers.mean(0)[0] - shared[0]).abs().max() > 0.1
