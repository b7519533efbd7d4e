"""Random numbers that depend on a model's seed and on nothing else.

Shuffles and starts are hashes of (seed, purpose, position): the same on every device, whoever else is in the stack,
and made for thousands of models in a few tensor operations.
"""

from __future__ import annotations

import math

import torch

SHUFFLE, MATE, START, TWIN, MIX = range(5)  # what a draw is for; each purpose has its own stream
ATTEMPTS = 4  # at a time, since to ask whether all are accepted is to wait for a GPU
Part = int | torch.Tensor


def _signed(value: int) -> int:
    """The same 64 bits as a signed number, since torch has no arithmetic on unsigned ones."""
    return (value + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def scramble(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's output function on int64 tensors: every input bit moves every output bit."""
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return x ^ _shift_right(x, 31)


def stream(seeds: torch.Tensor, purpose: int, part: Part) -> torch.Tensor:
    """A key for each seed (K,) for one purpose and part of it: an epoch or a parameter, or one for each seed."""
    key = scramble(seeds * _GOLDEN + _GOLDEN)
    number = purpose * 2**32 + part + 1
    return scramble(key + (_signed(number * _GOLDEN) if isinstance(number, int) else number * _GOLDEN))


def bits(keys: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` hashes for each key: shape (K, count)."""
    positions = torch.arange(1, count + 1, device=keys.device, dtype=torch.int64)
    return scramble(keys.unsqueeze(1) + positions * _GOLDEN)


def shuffles(seeds: torch.Tensor, epoch: Part, rows: int, purpose: int = SHUFFLE) -> torch.Tensor:
    """A permutation of 0 .. rows - 1 for each model in an epoch, or in one of its own: shape (K, rows)."""
    return torch.argsort(bits(stream(seeds, purpose, epoch), rows), dim=1, stable=True)


def uniforms(seeds: torch.Tensor, part: int, count: int) -> torch.Tensor:
    """Numbers in [0, 1) for each model's start, shape (K, count), float64."""
    drawn = _shift_right(bits(stream(seeds, START, part), count), 11)
    return drawn.double() * 2.0**-53


def twin_seeds(seeds: torch.Tensor) -> torch.Tensor:
    """The seeds of the twins of these models."""
    return stream(seeds, TWIN, 0)


def mixup_shares(seeds: torch.Tensor, alphas: torch.Tensor, epoch: Part, steps: int) -> torch.Tensor:
    """The share of the first of two mixed batches, drawn from Beta(alpha, alpha) for each step: shape (K, steps)."""
    # A Beta draw is the first of two Gamma draws over their sum.
    alphas = alphas.to(seeds.device, torch.float64).unsqueeze(1)
    drawn = _log_gammas(stream(seeds, MIX, epoch), alphas, 2 * steps)
    return 1 / (1 + torch.exp(drawn[:, steps:] - drawn[:, :steps]))


def _log_gammas(keys: torch.Tensor, shapes: torch.Tensor, count: int) -> torch.Tensor:
    """Logarithms of Gamma(shape) draws, (K, count), also of those below the smallest number that a float can hold."""
    # Marsaglia and Tsang's draws of Gamma(shape + 1), by rejection, times uniforms to the 1 / shape. Every attempt of
    # every draw has hashes of its own, so that a model's draws do not depend on its neighbours.
    d = shapes + 1 - 1 / 3
    c = 1 / torch.sqrt(9 * d)
    result = torch.full((len(keys), count), math.nan, device=keys.device, dtype=torch.float64)
    attempt = 0
    while attempt == 0 or attempt % ATTEMPTS or bool(result.isnan().any()):  # one of twenty is rejected at most
        attempt += 1
        hashed = _positive_uniforms(scramble(keys + _signed(attempt * _GOLDEN)), 3 * count)
        u, v, w = (part.contiguous() for part in hashed.chunk(3, dim=1))  # a stride may change a logarithm's last bit
        normal = torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * math.pi * v)
        base = 1 + c * normal
        cube = torch.where(base > 0, base, 1.0) ** 3
        accepted = (base > 0) & (torch.log(w) < 0.5 * normal**2 + d * (1 - cube + torch.log(cube)))
        result = torch.where(result.isnan() & accepted, torch.log(d * cube), result)
    boost = _positive_uniforms(scramble(keys + _signed(-_GOLDEN)), count)
    return result + torch.log(boost) / shapes


def _positive_uniforms(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers in (0, 1) for each key, shape (K, count), float64."""
    return (_shift_right(bits(keys, count), 11).double() + 0.5) * 2.0**-53
