"""Why residual networks stop before they predict: python benchmarks/running_statistics.py cifar10 --data DIR

Trains the base of one trial of the paper's protocol, a plain module in a plain loop, and after every epoch shows the
loss and accuracy on the validation rows twice: with the running statistics of the batch normalisations, as the network
predicts and as early stopping sees it, and with the statistics of these rows themselves.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch
import torch.nn.functional as F

from lowchurn.bench._loading import as_numbers, load
from lowchurn.bench._protocol import Protocol, draw, make_network


def judged(network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, running: bool) -> str:
    """Loss and accuracy, by running statistics or by those of these rows."""
    probe = copy.deepcopy(network).train(not running)
    with torch.no_grad():
        logits = probe(x)
    right = (logits.argmax(1) == y).double().mean().item()
    return f"{F.cross_entropy(logits, y).item():14.2f}{100 * right:9.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="cifar10")
    parser.add_argument("--data", help="folder of data, by default LOWCHURN_DATA")
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    data, protocol = load(chosen.dataset, chosen.data), Protocol(chosen.network)
    torch.manual_seed(0)
    network = make_network(protocol.network, data).to(chosen.device)
    drawn = draw(data, protocol, 0)
    adam = torch.optim.Adam(network.parameters(), eps=1e-7)

    def rows(which):
        x, y = torch.from_numpy(as_numbers(data.X[which])), torch.from_numpy(data.y[which])
        return x.to(chosen.device), y.to(chosen.device)

    x, y = rows(drawn.initial)
    shuffles = torch.Generator().manual_seed(0)
    print(f"{'':6}{'running statistics':>25}{'those of the rows':>25}")
    for epoch in range(1, chosen.epochs + 1):
        for part in torch.randperm(len(x), generator=shuffles).split(32):
            adam.zero_grad()
            F.cross_entropy(network(x[part]), y[part]).backward()
            adam.step()
        print(
            f"{epoch:6}" + "".join(judged(network, *rows(drawn.validation), running) for running in (True, False)),
            flush=True,
        )


if __name__ == "__main__":
    main()
