"""How long each kernel of a training step of K convnets takes on a GPU, and with other tiles.

    python benchmarks/convnets.py convnet-4                     # 28 x 28 x 1 and 32 x 32 x 3, as they are
    python benchmarks/convnets.py convnet-4 --tiles             # and each kernel with other tiles, compiled beforehand

A line is a kernel of one step of 32 rows: microseconds of one model, and its speed, which counts the products that the
layer needs, or, of the largest layer's step, the bytes of its weights and moments. Tiles are those of
``lowchurn.nets._kernels``: ``TILES`` of ``conv_gpu`` and ``dense_gpu``, and ``STEP`` of the latter.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch
from products import BATCH, fits, milliseconds

from lowchurn.nets._stacks import Settings
from lowchurn.nets._stacks._convnet_gpu import LARGEST, Chosen, GpuConvnetStack, padded
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
        [(4, 1, 256, 8, 3), (4, 2, 128, 4, 4), (4, 2, 256, 8, 3), (4, 4, 256, 8, 3), (2, 2, 128, 4, 4)],
    ),
    "dense": (
        ("BR", "BJ", "BK", "num_warps", "num_stages"),
        [(32, 64, 64, 4, 4), (32, 128, 64, 4, 4), (32, 64, 128, 4, 4), (32, 64, 64, 4, 6), (32, 32, 128, 4, 4)],
    ),
    # What bounds this kernel is how many bytes are on their way: multiprocessors have room for 65536 registers, so
    # with 128 of each thread for four programs of four warps. Tiles with BI 32 or more than 64 x 128 numbers spill.
    "largest": (
        ("BI", "BJ", "AHEAD", "num_warps", "maxnreg"),
        [
            *((64, 64, 3, 4, None), (64, 64, 1, 4, None), (64, 64, 2, 8, 128), (64, 64, 3, 8, 128)),
            *((64, 128, 1, 8, None), (64, 128, 2, 8, None), (128, 64, 2, 8, None), (64, 32, 2, 4, 128)),
            *((64, 32, 3, 4, 128), (16, 128, 1, 4, None), (16, 128, 2, 4, None), (16, 128, 3, 4, None)),
            *((16, 128, 2, 8, None), (16, 256, 2, 4, None), (16, 256, 2, 8, 128), (16, 512, 1, 8, None)),
            *((32, 128, 2, 4, None), (32, 128, 2, 8, None)),
        ],
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
        with torch.no_grad():
            self.chosen = Chosen(self.stack._images(pool), padded(rows, BATCH))
            _, self.trace = self.stack._forward(self.chosen, record=True)
        self.back = torch.randn_like(self.trace.hidden1)
        self.pooled = torch.empty_like(self.trace.pooled2)
        self.spread = self.stack._before_pooling(self.trace)
        self.sums = self.back.new_empty(models, self.pooled[0, 0].numel(), dtype=torch.float32)
        self.call("largest", {})()

    def call(self, kernel: str, tile: dict) -> Callable[[], object]:
        """A function without arguments that runs a kernel with some tiles in place of the library's own."""
        stack, trace, conv, dense = self.stack, self.trace, self.stack.conv_kernels, self.stack.dense_kernels
        low, slopes = stack.layout.views(stack.rounded), stack.slopes
        first, second = low["conv1.weight"], low["conv2.weight"]
        flat, made = trace.pooled2.flatten(2), torch.empty_like(trace.pooled1)
        spread = self.spread, self.sums, trace.which2
        arguments: dict[str, tuple] = {
            "first": (conv.first_conv_pool, self.chosen, first, low["conv1.bias"], made, trace.which1),
            "first_grad": (
                *(conv.first_conv_weight_grad, self.chosen, trace.pooled1, trace.which1),
                *(slopes["conv1.weight"], slopes["conv1.bias"]),
            ),
            "forward": (conv.conv_pool, trace.pooled1, second, low["conv2.bias"], self.pooled, trace.which2),
            "weight": (conv.conv_weight_grad, trace.pooled1, self.spread, slopes["conv2.weight"]),
            "input": (conv.conv_input_grad, self.spread, second, trace.which1, made),
            "dense": (dense.dense_relu, flat, stack.weights[f"high.{LARGEST}"], low["dense1.bias"]),
            "largest": (dense.dense_backward, flat, self.back, *stack._trained(LARGEST), *spread),
        }
        function, *given = arguments[kernel]
        return lambda: function(*given, **tile)

    def speed(self, kernel: str, seconds: float) -> str:
        """Of what the layer needs: products in TFLOP/s, or bytes of weights and moments in TB/s."""
        if kernel == "largest":
            return f"{20 * self.stack.params[LARGEST][0].numel() / seconds / 1e12:8.2f} TB/s"
        params, side = self.stack.params, self.chosen.images
        outputs = {"first": side.height * side.width, "forward": self.spread[0, 0, ..., 0].numel(), "dense": 1}
        layer = {"first_grad": "first", "weight": "forward", "input": "forward"}.get(kernel, kernel)
        weights = params[{"first": "conv1.weight", "forward": "conv2.weight", "dense": "dense1.weight"}[layer]][0]
        return f"{2 * BATCH * outputs[layer] * weights.numel() / seconds / 1e12:8.1f} TFLOP/s"

    def show(self, kernel: str, tile: dict) -> None:
        seconds = milliseconds(self.call(kernel, tile)) / self.models / 1e3
        words = ", ".join(f"{name} {value}" for name, value in tile.items()) or "as it is"
        print(f"  {kernel:12}{1e6 * seconds:9.3f} us{self.speed(kernel, seconds)}   {words}", flush=True)


def tiles(kernel: str) -> list[dict]:
    names, values = TRIED[kernel]
    return [dict(zip(names, some, strict=True)) for some in values]


def compiled(job: tuple[str, tuple[int, int, int], str]) -> list[bool]:
    """Compile a kernel with all tiles, in a process of its own; False for those that do not fit."""
    network, shape, kernel = job
    step = Step(network, shape, 1)
    return [fits(step.call(kernel, tile)) for tile in ({}, *tiles(kernel))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="convnet-N")
    parser.add_argument("--tiles", action="store_true", help="try other tiles")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile")
    parser.add_argument("--models", type=int, default=256)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("convnets: needs a CUDA device")
    places = [(network, shape) for network in chosen.networks for shape in SHAPES]
    fit: dict[tuple, list[bool]] = {}
    if chosen.tiles:
        jobs = [(*place, kernel) for place in places for kernel in TRIED]
        with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
            fit = dict(zip(jobs, pool.map(compiled, jobs), strict=True))
    for network, shape in places:
        step = Step(network, shape, chosen.models)
        print(f"{network} on {' x '.join(map(str, shape))}, {chosen.models} models")
        for kernel in TRIED:
            step.show(kernel, {})
            good = fit.get((network, shape, kernel), [])[1:]
            for tile, fitting in zip(tiles(kernel), good, strict=False):
                if fitting:
                    step.show(kernel, tile)
        del step
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
