"""A training loop of one's own in a run: a small network learns the sine, at any number of sites.

`python own_loop.py describe` writes down the module; `dilocoxd start --module sine-model --dir first` starts the run;
`python own_loop.py first 2000` trains in it. Another site: `dilocoxd join LINK --dir second`, and the same loop there.
"""

import sys

import torch
from torch import nn

from dilocoxd import Site, describe

model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_on(x: torch.Tensor) -> torch.Tensor:
    """Squared error of the model on `x`."""
    return nn.functional.mse_loss(model(x), torch.sin(x))


def train(run_directory: str, num_steps: int) -> None:
    """The loop; the lines with `site` are what the run needs."""
    held_out = torch.linspace(-3, 3, 100).unsqueeze(1)
    batches = held_out.split(20)
    with Site(run_directory, model, evaluate=lambda: [loss_on(batch).item() for batch in batches]) as site:
        for _ in range(num_steps):
            loss = loss_on(6 * torch.rand(32, 1) - 3)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not site.step(loss.item(), tokens=32):
                break
        print(f"round {site.round}, loss {loss_on(held_out).item():.4f}")


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        describe(model, "sine-model")
    else:
        train(sys.argv[1], int(sys.argv[2]))
