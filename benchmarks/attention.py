"""How fast the attention of K transformers is on a GPU, and with other tiles.

    python benchmarks/attention.py transformer-1 transformer-16     # as it is
    python benchmarks/attention.py transformer-16 --tiles           # one kernel at a time with other tiles

A line is attention, or its gradient, of one training step of 32 rows of 200 tokens: milliseconds of one model, and its
speed in TFLOP/s. Tiles are those of ``lowchurn.nets._kernels.attention_gpu.TILES``.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch
from products import BATCH, LENGTH, fits, milliseconds

MODELS = {1: 128, 2: 64, 4: 24, 8: 8}  # at once, by size; 3 of larger ones
NARROW = (1, 2)  # sizes whose kernels have tiles for each width
# Kernel -> names of its constants, and values to try.
TRIED: dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]] = {
    "narrow": (
        ("BM", "BN", "num_warps", "num_stages"),
        [(64, 32, 4, 3), (128, 32, 8, 3), (128, 64, 8, 3), (64, 64, 4, 3), (128, 32, 4, 3), (64, 64, 4, 2)],
    ),
    "narrow grad": (
        ("BM", "num_warps", "num_stages"),
        [(16, 4, 1), (16, 4, 2), (16, 8, 2), (32, 4, 1), (32, 4, 2), (32, 8, 1), (32, 8, 2), (64, 8, 2)],
    ),
    "probabilities": (
        ("BM", "CHUNK", "num_warps", "num_stages"),
        [(128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3), (128, 32, 8, 4)],
    ),
    "score grad": (
        ("BM", "CHUNK", "num_warps", "num_stages"),
        [(128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3), (128, 32, 8, 4)],
    ),
    "weighted": (
        ("BM", "CHUNK", "BN", "num_warps", "num_stages"),
        [(128, 128, 32, 8, 4), (128, 128, 64, 8, 3), (64, 128, 32, 4, 4), (128, 128, 32, 4, 4), (256, 128, 32, 8, 3)],
    ),
    "token": (
        ("BN", "CHUNK", "BM", "num_warps", "num_stages"),
        [(128, 128, 64, 8, 3), (128, 128, 64, 8, 2), (128, 256, 32, 8, 3), (128, 128, 64, 4, 3), (128, 128, 32, 8, 4)],
    ),
}
OWN: dict[str, dict] = {}  # the library's tiles, before any others are taken
OF_GRADIENT = ("narrow grad", "score grad", "weighted", "token")


@dataclass(frozen=True)
class Timed:
    """Attention of transformers of a size, or its gradient, with other tiles for one of its kernels."""

    size: int
    gradient: bool
    kernel: str = ""
    tile: dict = field(default_factory=dict, hash=False)

    @property
    def flops(self) -> int:
        """Operations of one model: two products, or four."""
        return (8 if self.gradient else 4) * BATCH * LENGTH**2 * 2 * self.size * 32 * self.size

    def call(self, models: int, device: str = "cuda") -> Callable[[], object]:
        """A function without arguments that computes it."""
        from lowchurn.nets._kernels import attention_gpu as kernels

        make = torch.Generator(device).manual_seed(0)
        width, heads = 32 * self.size, 2 * self.size

        def draw(columns: int) -> torch.Tensor:
            shape = (models, BATCH * LENGTH, columns)
            return torch.randn(shape, device=device, generator=make, dtype=torch.float32).to(torch.bfloat16)

        x, q = draw(width), 0.3 * draw(heads * width)
        if not self.gradient:
            return lambda: kernels.attention(q, x, LENGTH)
        out, kept = kernels.attention(q, x, LENGTH)
        back = draw(heads * width)
        return lambda: kernels.attention_grad(q, x, kept, out, back, x, LENGTH)

    def use_tiles(self) -> None:
        """Take these tiles, and the library's own for all other kernels."""
        from lowchurn.nets._kernels import attention_gpu as kernels

        OWN.setdefault("tiles", copy.deepcopy(kernels.TILES))
        kernels.TILES.update(copy.deepcopy(OWN["tiles"]))
        if self.kernel:
            kernels.TILES[self.kernel] = {32 * self.size: self.tile} if self.size in NARROW else self.tile


def variants(size: int) -> Iterator[Timed]:
    """Every kernel that a size has, with every tile that its width allows."""
    for kernel, (names, values) in TRIED.items():
        if kernel.startswith("narrow") == (size in NARROW):
            for value in values:
                tile = dict(zip(names, value, strict=True))
                if tile.get("CHUNK", 0) <= 32 * size:
                    yield Timed(size, kernel in OF_GRADIENT, kernel, tile)


def compiled(one: Timed) -> bool:
    """Compile its kernels, in a process of its own; False where its tiles do not fit."""
    one.use_tiles()
    return fits(lambda: one.call(1)())


def show(one: Timed) -> None:
    one.use_tiles()
    models = MODELS.get(one.size, 3)
    took = milliseconds(one.call(models)) / models
    words = f"{one.kernel} {', '.join(map(str, one.tile.values()))}" if one.kernel else "as it is"
    kind = "gradient" if one.gradient else "attention"
    print(
        f"transformer-{one.size:<4}{kind:11}{words:42}{took:9.4f} ms{one.flops / took / 1e9:8.0f} TFLOP/s", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="transformer-N")
    parser.add_argument("--tiles", action="store_true", help="try other tiles")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention: needs a CUDA device")
    sizes = [int(network.removeprefix("transformer-")) for network in chosen.networks]
    every = [Timed(size, gradient) for size in sizes for gradient in (False, True)]
    if chosen.tiles:
        every += [one for size in sizes for one in variants(size)]
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        fit = list(pool.map(compiled, every))
    for one, good in zip(every, fit, strict=True):
        if good:
            show(one)


if __name__ == "__main__":
    main()
