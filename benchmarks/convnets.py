"""How long each kernel of a training step of K convnets takes on a GPU, and with other tiles.

    python benchmarks/convnets.py convnet-4                     # 28 x 28 x 1 and 32 x 32 x 3, as they are
    python benchmarks/convnets.py convnet-4 --tiles             # and each kernel with other tiles, compiled beforehand
    python benchmarks/convnets.py convnet-4 --train             # whole calls of `train`, and decisions on other rows

A line is a kernel of one step of 32 rows: microseconds of one model, and its speed, which counts the products that the
layer needs, or, where that is all but what bounds it, the bytes of its weights and moments. The last line is their sum,
and a whole step, launched kernel by kernel. Tiles are those of ``lowchurn.nets._kernels``: ``TILES`` of ``conv_gpu``
and ``dense_gpu``, and ``STEP`` and ``MANY`` of the latter.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import numpy as np
import torch
from products import BATCH, fits, milliseconds

from lowchurn.nets import Task, train
from lowchurn.nets._losses import batch_gradient
from lowchurn.nets._stacks import Batches, Settings
from lowchurn.nets._stacks._convnet_gpu import INNER, LARGEST, Chosen, GpuConvnetStack, padded
from lowchurn.nets.networks import convnet

SHAPES = ((28, 28, 1), (32, 32, 3))
CLASSES, DEVICE = 10, "cuda"
# Kernel -> names of its constants, and values to try.
TRIED: dict[str, tuple[tuple[str, ...], list[tuple]]] = {
    "first": (
        ("BP", "TILES", "num_warps", "num_stages"),
        [(64, 8, 4, 2), (64, 2, 4, 2), (128, 4, 8, 2), (32, 4, 4, 2), (64, 4, 4, 3), (64, 4, 8, 2)],
    ),
    "first_grad": (
        ("BP", "SPLITS", "num_warps", "num_stages"),
        [(64, 2, 4, 2), (64, 8, 4, 2), (32, 4, 4, 2), (128, 4, 8, 2), (64, 4, 8, 2), (64, 4, 4, 3)],
    ),
    "forward": (
        ("BLOCK_M", "BLOCK_K", "num_warps", "num_stages"),
        [(128, 64, 8, 3), (128, 64, 4, 3), (128, 32, 8, 4), (256, 64, 8, 3), (256, 64, 8, 2), (256, 32, 8, 4)],
    ),
    "weight": (
        ("BLOCK_KK", "BLOCK_M", "num_warps", "num_stages"),
        [
            *((256, 64, 8, 3), (256, 64, 8, 4), (256, 128, 8, 2), (256, 32, 8, 4), (128, 128, 8, 3), (128, 64, 8, 4)),
            (128, 32, 4, 4),
        ],
    ),
    "input": (
        ("XG", "YG", "BLOCK_M", "num_warps", "num_stages"),
        [
            *((4, 1, 256, 8, 3), (4, 2, 128, 4, 4), (4, 2, 256, 8, 3), (4, 4, 256, 8, 3), (4, 1, 128, 4, 4)),
            *((2, 2, 128, 4, 3), (2, 2, 128, 8, 3), (2, 1, 64, 4, 4), (2, 1, 64, 4, 3), (4, 1, 128, 4, 3)),
            *((4, 1, 128, 4, 5), (4, 1, 128, 8, 4), (1, 4, 128, 4, 4), (2, 4, 256, 8, 3)),
        ],
    ),
    "dense": (
        ("BR", "BJ", "BK", "num_warps", "num_stages"),
        [(32, 64, 64, 4, 4), (32, 128, 64, 4, 4), (32, 64, 128, 4, 4), (32, 64, 64, 4, 6), (32, 32, 128, 4, 4)],
    ),
    # Both read the blocks of ``_convnet_gpu.BLOCKS``. What bounds them is how many bytes are on their way: with 128
    # registers of each thread, a multiprocessor has room for four programs of four warps.
    "inner": (("AHEAD", "num_warps"), [(2, 4), (3, 2), (1, 4)]),
    "largest": (
        ("AHEAD", "num_warps", "maxnreg"),
        [(2, 4, None), (4, 4, None), (1, 4, None), (2, 8, 128), (3, 8, 128), (1, 8, 128), (2, 4, 160), (1, 4, 128)],
    ),
}


class Step:
    """The kernels of one training step of some convnets, one at a time, on what a whole step left behind."""

    def __init__(self, network: str, shape: tuple[int, int, int], models: int) -> None:
        make = torch.Generator(DEVICE).manual_seed(0)
        module = convnet(int(network.split("-")[1]), classes=CLASSES, shape=shape)
        params = {n: p.detach().to(DEVICE).expand(models, *p.shape).contiguous() for n, p in module.named_parameters()}
        self.models, self.stack = models, GpuConvnetStack(params, Settings(torch.device(DEVICE), torch.float32))
        pool = torch.rand(4000, *shape, device=DEVICE, generator=make)
        rows = torch.randint(len(pool), (models, BATCH), device=DEVICE, generator=make)
        targets = torch.rand(models, BATCH, CLASSES, device=DEVICE, generator=make).softmax(-1)
        order = torch.arange(BATCH, device=DEVICE).expand(models, -1)
        self.batches = Batches(pool, rows, targets, torch.ones(models, BATCH, device=DEVICE), order)
        self.kernels = self._kernels()

    @torch.no_grad()
    def _kernels(self) -> dict[str, tuple]:
        """All kernels of a step in order: name -> function and its arguments."""
        stack, batches, conv, dense = self.stack, self.batches, self.stack.conv_kernels, self.stack.dense_kernels
        low, slopes = stack.layout.views(stack.rounded), stack.slopes
        chosen = Chosen(stack._images(batches.pool), padded(batches.rows, BATCH))
        logits, trace = stack._forward(chosen, record=True)
        made, flat, spread = torch.empty_like(trace.pooled1), trace.pooled2.flatten(2), stack._before_pooling(trace)
        sums = logits.new_empty(self.models, flat.shape[-1])
        back1, back2 = torch.randn_like(trace.hidden1), torch.randn_like(trace.hidden2)
        first, second = low["conv1.weight"], low["conv2.weight"]
        inner = stack.weights[f"high.{INNER}"], low["dense2.bias"]
        last = stack.views["dense3.weight"], stack.views["dense3.bias"]
        of_last = slopes["dense3.weight"], slopes["dense3.bias"], slopes["dense2.bias"]
        of_first = slopes["conv1.weight"], slopes["conv1.bias"]
        rest = stack.weights["rest"], *(moment["rest"] for moment in stack.moments), slopes["rest"]
        labels = batches.targets, batches.weights, False
        slope = batch_gradient(logits, *labels)
        kernels: dict[str, tuple] = {
            "first": (conv.first_conv_pool, chosen, first, low["conv1.bias"], trace.pooled1, trace.which1),
            "forward": (conv.conv_pool, trace.pooled1, second, low["conv2.bias"], trace.pooled2, trace.which2),
            "dense": (dense.dense_relu, flat, stack.weights[f"high.{LARGEST}"], low["dense1.bias"]),
            "head": (dense.head, trace.hidden1, *inner, *last),
            "loss": (batch_gradient, logits, *labels),
            "head_grad": (dense.head_backward, slope, trace.hidden2, last[0], *of_last),
            "inner": (
                *(dense.dense_backward, trace.hidden1, back2, *stack._trained(INNER)),
                *(torch.empty_like(back1), slopes["dense1.bias"]),
            ),
            "largest": (
                *(dense.dense_backward, flat, back1, *stack._trained(LARGEST)),
                *(spread, sums, trace.which2),
            ),
            "sums": (dense.column_sums, sums.view(self.models, -1, spread.shape[-1]), slopes["conv2.bias"]),
            "weight": (conv.conv_weight_grad, trace.pooled1, spread, slopes["conv2.weight"]),
            "input": (conv.conv_input_grad, spread, second, trace.which1, made),
            "first_grad": (conv.first_conv_weight_grad, chosen, trace.pooled1, trace.which1, *of_first),
            "adam": (partial(dense.adam, rate=stack.step_size, copy=stack.rounded), *rest),
        }
        function, *given = kernels["largest"]
        function(*given)  # so that there is a gradient for the convolutions
        positions = (math.prod(some.shape[-3:-1]) for some in (batches.pool, spread))
        self.outputs = dict(zip(("first", "forward", "dense"), (*positions, 1), strict=True))
        return kernels

    def call(self, kernel: str, tile: dict) -> Callable[[], object]:
        """A function without arguments that runs a kernel with some tiles in place of the library's own."""
        function, *given = self.kernels[kernel]
        return lambda: function(*given, **tile)

    def speed(self, kernel: str, seconds: float) -> str:
        """Of what the layer needs: products in TFLOP/s, or bytes of weights, moments and stored gradients in TB/s."""
        params = self.stack.params
        if kernel in ("largest", "inner", "adam"):
            count = self.stack.weights["rest"].numel() / self.models
            weights = {"largest": params[LARGEST][0].numel(), "inner": params[INNER][0].numel(), "adam": count}
            each = {"largest": 20, "inner": 24, "adam": 30}
            return f"{each[kernel] * weights[kernel] / seconds / 1e12:8.2f} TB/s"
        layer = {"first_grad": "first", "weight": "forward", "input": "forward"}.get(kernel, kernel)
        if layer not in self.outputs:
            return ""
        name = {"first": "conv1.weight", "forward": "conv2.weight", "dense": LARGEST}[layer]
        return f"{2 * BATCH * self.outputs[layer] * params[name][0].numel() / seconds / 1e12:8.1f} TFLOP/s"

    def seconds(self, call: Callable[[], object]) -> float:
        return milliseconds(call) / self.models / 1e3

    def show(self, kernel: str, tile: dict) -> float:
        """Print how long a kernel takes, and return the seconds of one model."""
        seconds = self.seconds(self.call(kernel, tile))
        words = ", ".join(f"{name} {value}" for name, value in tile.items()) or "as it is"
        print(f"  {kernel:12}{1e6 * seconds:9.3f} us{self.speed(kernel, seconds):17}   {words}", flush=True)
        return seconds


def tiles(kernel: str) -> list[dict]:
    names, values = TRIED.get(kernel, ((), []))
    return [dict(zip(names, some, strict=True)) for some in values]


def compiled(job: tuple[str, tuple[int, int, int], str]) -> list[bool]:
    """Compile a kernel with all tiles, in a process of its own; False for those that do not fit."""
    network, shape, kernel = job
    step = Step(network, shape, 1)
    return [fits(step.call(kernel, tile)) for tile in ({}, *tiles(kernel))]


def time_training(network: str, shape: tuple[int, int, int], models: int) -> None:
    """Print how long whole calls of ``train`` take, of 2 and of 12 epochs, and the decisions on 10,000 other rows."""
    rng, rows, held_out, other = np.random.default_rng(0), 2000, 100, 10000
    X, y = rng.random((rows + held_out + other, *shape), "float32"), np.eye(CLASSES)[rng.integers(CLASSES, size=2100)]
    own, rest = np.arange(rows), np.arange(rows, rows + held_out)
    tasks = [Task(own, y[own], rest, y[rest], seed=seed) for seed in range(models)]
    module, pool = convnet(int(network.split("-")[1]), classes=CLASSES, shape=shape), torch.from_numpy(X).to(DEVICE)
    train(module, pool, tasks, epochs=1)  # compiles
    for epochs in (2, 2, 2, 12):
        began = time.perf_counter()
        trained = train(module, pool, tasks, epochs=epochs, patience=epochs)
        torch.cuda.synchronize()
        middle = time.perf_counter()
        trained.decisions(pool[rows + held_out :])
        torch.cuda.synchronize()
        training = 1e3 * (middle - began) / (models * epochs)
        prediction = 1e3 * (time.perf_counter() - middle) / models * rows / other
        print(
            f"  {epochs:2} epochs: {training:.3f} ms per model-epoch; prediction of {rows:,} rows {prediction:.3f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="convnet-N")
    parser.add_argument("--tiles", action="store_true", help="try other tiles")
    parser.add_argument("--train", action="store_true", help="time whole trainings instead of kernels")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile")
    parser.add_argument("--models", type=int, default=256)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("convnets: needs a CUDA device")
    places = [(network, shape) for network in chosen.networks for shape in SHAPES]
    if chosen.train:
        for network, shape in places:
            print(f"{network} on {' x '.join(map(str, shape))}, {chosen.models} models")
            time_training(network, shape, chosen.models)
        return
    fit: dict[tuple, list[bool]] = {}
    if chosen.tiles:
        jobs = [(*place, kernel) for place in places for kernel in TRIED]
        with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
            fit = dict(zip(jobs, pool.map(compiled, jobs), strict=True))
    for network, shape in places:
        step = Step(network, shape, chosen.models)
        print(f"{network} on {' x '.join(map(str, shape))}, {chosen.models} models")
        total = 0.0
        for kernel in step.kernels:
            total += step.show(kernel, {})
            good = fit.get((network, shape, kernel), [])[1:]
            for tile, fitting in zip(tiles(kernel), good, strict=False):
                if fitting:
                    step.show(kernel, tile)
        whole = step.seconds(partial(step.stack.train_step, step.batches))
        print(f"  {'sum':12}{1e6 * total:9.3f} us, a whole step {1e6 * whole:.3f} us", flush=True)
        del step
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
