"""How fast the products of K networks are on a GPU, beside those of the library and with other tiles.

    python benchmarks/products.py transformer-16 resnet-50          # as they are, and by torch
    python benchmarks/products.py transformer-16 --tiles            # and with other tiles; compiles for a minute or two
    python benchmarks/products.py transformer-16 --profile          # which kernels a training spends its time in

A line is a product of one training step of 32 rows: forward, the gradient at the inputs ("back") or that of the weights
("weights"), with its speed in TFLOP/s. Tiles are those of ``lowchurn.nets._kernels.products_gpu``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch

from lowchurn.nets import networks

BATCH, LENGTH = 32, 200
ROOM = 24 * 2**30  # bytes of all operands of a product


@dataclass(frozen=True)
class Product:
    """``(positions, inputs) @ (inputs, outputs)`` of one model, or ``side x side`` windows of images of a height."""

    name: str
    kind: str  # forward, back or weights
    inputs: int
    outputs: int
    side: int = 1
    height: int = 1
    rows: int = BATCH * LENGTH

    @property
    def flops(self) -> int:
        """Operations of one model."""
        return 2 * self.rows * self.height**2 * self.side**2 * self.inputs * self.outputs

    @property
    def models(self) -> int:
        """As many as fit, at most 64."""
        positions, weights = self.rows * self.height**2, self.side**2 * self.inputs * self.outputs
        return max(1, min(64, ROOM // (2 * positions * (self.inputs + self.outputs) + 6 * weights)))


def products_of(network: str) -> list[Product]:
    """The products of a network, the larger ones, each in its three kinds."""
    family, size = network.split("-")
    layers: list[tuple] = []
    if family == "transformer":
        module = networks.transformer(int(size))
        width, wide = module.out.weight.shape[::-1]
        layers = [("queries", width, wide), ("outputs", wide, width), ("ff1", *module.ff1.weight.shape)]
    elif family == "resnet":
        layers = _conv_layers(networks.resnet(int(size)))
    else:
        raise SystemExit(f"products: transformer-N or resnet-N, got {network}")
    kinds = ("forward", "back", "weights")
    return [Product(f"{network} {name}", kind, *shape) for name, *shape in layers for kind in kinds]


def _conv_layers(module: torch.nn.Module) -> list[tuple]:
    """Every shape of convolution of stride 1 once: name, inputs, outputs, side, height, rows."""
    seen: dict[tuple, str] = {}

    def note(name):
        def hook(layer, inputs, _):
            side, _, channels, outputs = layer.weight.shape
            if layer.stride in (1, (1, 1)):
                seen.setdefault((channels, outputs, side, inputs[0].shape[1], BATCH), name)

        return hook

    for name, layer in module.named_modules():
        if isinstance(layer, networks.Conv):
            layer.register_forward_hook(note(name))
    with torch.no_grad():
        module.eval()(torch.zeros(1, 32, 32, 3))
    return [(name, *shape) for shape, name in seen.items()]


def operands(one: Product, models: int) -> tuple[torch.Tensor, ...]:
    make = torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.randn(models, *shape, device="cuda", generator=make, dtype=torch.bfloat16)

    shape, weights = (one.rows, one.height, one.height), (one.side, one.side, one.inputs, one.outputs)
    if one.kind == "weights":
        return draw(*shape, one.inputs), draw(*shape, one.outputs), torch.empty(models, *weights, device="cuda")
    return draw(*shape, one.inputs if one.kind == "forward" else one.outputs), draw(*weights) / one.inputs**0.5


def ours(one: Product, models: int):
    """A function without arguments that computes the product."""
    from lowchurn.nets._kernels import products_gpu as kernels

    given = operands(one, models)
    call = {"forward": kernels.conv, "back": kernels.input_grad, "weights": kernels.weight_grad}[one.kind]
    return lambda: call(*given)


def of_torch(one: Product, models: int):
    """The same by torch's batched matrix products, or None for windows."""
    if one.side > 1:
        return None
    x, w = (value.flatten(1, 3) for value in operands(one, models)[:2])
    return {"forward": lambda: x @ w, "back": lambda: x @ w.mT, "weights": lambda: x.mT @ w}[one.kind]


def tiles(one: Product) -> list[dict]:
    """Other tiles to try, by name of their constants."""
    sizes = [(128, 128, 8, 3), (128, 128, 4, 4), (128, 256, 8, 3), (256, 128, 8, 3), (64, 256, 4, 4), (128, 256, 8, 4)]
    if one.kind == "weights":
        names = ("BLOCK_C", "BLOCK_N", "num_warps", "num_stages")
        return [dict(zip(names, some, strict=True)) | {"BLOCK_M": depth} for some in sizes for depth in (32, 64)]
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    return [dict(zip(names, some, strict=True)) | {"BLOCK_K": depth} for some in sizes for depth in (32, 64)]


def use(tile: dict, one: Product) -> None:
    """Take these tiles instead of the library's own."""
    from lowchurn.nets._kernels import products_gpu as kernels

    setattr(kernels, "_weight_tile" if one.kind == "weights" else "_tile", lambda *shape: tile)


def compiled(job: tuple[Product, dict]) -> bool:
    """Compile a kernel, in a process of its own; False where its tiles do not fit."""
    one, tile = job
    use(tile, one)
    return fits(ours(one, 1))


def fits(call: Callable[[], object]) -> bool:
    """Run something on the GPU; False where its tiles do not fit."""
    try:
        call()
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory, in Triton's own class
        if "resource" not in f"{type(error).__name__} {error}".lower():
            raise
        return False
    return True


def milliseconds(call) -> float:
    """The median of ten calls."""
    call()
    found = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def show(one: Product, words: str, call) -> None:
    took = milliseconds(call) / one.models
    shape = f"{one.inputs} -> {one.outputs}" + (f", {one.side} x {one.side} at {one.height}" if one.side > 1 else "")
    print(
        f"{one.name:26}{one.kind:9}{shape:30}{words:42}{took:9.4f} ms{one.flops / took / 1e9:8.0f} TFLOP/s", flush=True
    )


def profile(network: str, models: int) -> None:
    """Train some networks for an epoch and show the kernels that took longest."""
    import numpy as np

    from lowchurn.nets import Task, train

    family, size = network.split("-")
    rng, rows = np.random.default_rng(0), 640
    y = np.eye(2)[rng.integers(2, size=rows)]
    make: Callable[[int], networks.Network]
    if family == "transformer":
        X, make = rng.integers(20000, size=(rows, LENGTH)), networks.transformer
    else:
        X, kind = rng.random((rows, 32, 32, 3), "float32"), getattr(networks, family)
        make = partial(kind, classes=2, **({"shape": X.shape[1:]} if family == "convnet" else {}))
    held_out = np.arange(512, rows)
    tasks = [Task(np.arange(512), y[:512], held_out, y[512:], seed=k) for k in range(models)]
    options = {"epochs": 1, "device": "cuda", "precision": "bfloat16"}
    train(make(int(size)), X, tasks, **options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        train(make(int(size)), X, tasks, **options)
    print(f"{network}, {models} models, 16 steps")
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=18, max_name_column_width=50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="transformer-N, resnet-N, or any to profile")
    parser.add_argument("--tiles", action="store_true", help="try other tiles")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--profile", action="store_true", help="only show where a training spends its time")
    parser.add_argument("--models", type=int, default=8, help="networks that are trained for it")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("products: needs a CUDA device")
    if chosen.profile:
        for network in chosen.networks:
            profile(network, chosen.models)
        return
    every = [one for network in chosen.networks for one in products_of(network)]
    for one in every:
        show(one, "ours", ours(one, one.models))
        library = of_torch(one, one.models)
        if library:
            show(one, "torch", library)
    if chosen.tiles:
        jobs = [(one, tile) for one in every for tile in tiles(one)]
        with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
            fit = list(pool.map(compiled, jobs))
        for (one, tile), good in zip(jobs, fit, strict=True):
            if good:
                use(tile, one)
                show(one, ", ".join(f"{value}" for _, value in sorted(tile.items())), ours(one, one.models))


if __name__ == "__main__":
    main()
