"""Stacks of convolutional networks on a GPU: Triton kernels read windows straight from the activations.

Products run in bfloat16 with float32 accumulation. Weights, moments, the last layer and the loss stay in float32, but
for the first moment of the largest layer, which is kept in bfloat16. ``docs/performance.md`` shows that this changes
results by less than another seed does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from lowchurn.nets._losses import batch_gradient
from lowchurn.nets._stacks._convnet import SIDE
from lowchurn.nets._stacks._stack import Batches, FlatParameters, RecordableStack, Settings, State

LARGEST, INNER = "dense1.weight", "dense2.weight"  # most of the parameters are those of the first
HALVED = {LARGEST: torch.bfloat16, INNER: torch.float32}  # layers that lie in two halves -> type of the first moment
BLOCKS = {LARGEST: (64, 64), INNER: (16, 32)}  # inputs and outputs of a block, as the kernels' fastest tiles on an H200
ROWS_AT_ONCE = 128  # that are predicted; one number for all stacks, since products of other shapes may round otherwise


class Images:
    """A pool of images as the kernels read them.

    ``strips`` (images, rows, pooled columns, run): the pixels of each row under both windows of a pooled column, with a
    border of zeros around the image, filled up to a multiple of 16 bytes.
    """

    def __init__(self, pool: torch.Tensor, kind: torch.dtype = torch.bfloat16) -> None:
        count, self.height, self.width, self.channels = pool.shape
        pad, run = SIDE // 2, (SIDE + 1) * self.channels
        bordered = F.pad(pool.to(kind), (0, 0, pad, pad, pad, pad))
        image, line, *_ = bordered.stride()
        shape = count, bordered.shape[1], self.width // 2, run
        strips = bordered.as_strided(shape, (image, line, 2 * self.channels, 1))
        self.strips = F.pad(strips, (0, -run % 8)).contiguous()


@dataclass(frozen=True)
class Chosen:
    """Rows of a pool of images, (K, B) or the same (1, B) for all models, and what is mixed into them."""

    images: Images
    index: torch.Tensor
    mate: torch.Tensor | None = None
    share: torch.Tensor | None = None  # (K, 1), of the first


class Trace(NamedTuple):
    """What the backward pass needs: the outputs of all layers but the last, and the winners of the pooling."""

    pooled1: torch.Tensor
    which1: torch.Tensor
    pooled2: torch.Tensor
    which2: torch.Tensor
    hidden1: torch.Tensor
    hidden2: torch.Tensor


class GpuConvnetStack(RecordableStack):
    """K networks of :func:`~lowchurn.nets.networks.convnet`; images are read from the pool by index.

    The weights of the dense layers before the last lie in two halves of 16 bits, such as "high.dense1.weight" and
    "low.dense1.weight", in blocks as their moments, all other parameters in a flat buffer, "rest".
    """

    recordable = True
    compute = torch.bfloat16  # what products take

    def __init__(self, params: State, settings: Settings) -> None:
        from lowchurn.nets._kernels import conv_gpu, dense_gpu

        self.conv_kernels: ModuleType = conv_gpu
        self.dense_kernels: ModuleType = dense_gpu
        self._lay_out(FlatParameters({name: value for name, value in params.items() if name not in HALVED}))
        weights, self.sizes = {"rest": self.layout.flat}, {name: params[name].shape[1:] for name in HALVED}
        for name in HALVED:
            weights[f"high.{name}"], weights[f"low.{name}"] = split(in_blocks(params[name], *BLOCKS[name]))
        super().__init__(weights, settings)
        self._seen = WeakTensorKeyDictionary()  # pools as the kernels read them, each as long as it is there

    def _lay_out(self, layout: FlatParameters) -> None:
        self.layout, self.views = layout, layout.views(layout.flat)
        self.rounded = layout.flat.to(self.compute)
        self.__dict__.pop("slopes", None)

    @cached_property
    def moments(self) -> tuple[State, State]:
        rest = self.weights["rest"]
        first, second = {"rest": torch.zeros_like(rest)}, {"rest": torch.zeros_like(rest)}
        for name, kind in HALVED.items():
            first[name] = torch.zeros_like(self.weights[f"high.{name}"], dtype=kind)
            second[name] = torch.zeros_like(first[name], dtype=rest.dtype)
        return first, second

    @cached_property
    def slopes(self) -> State:
        """Room for the gradients of all but what lies in halves, name -> (K, ...), and as a whole under "rest"."""
        flat = torch.zeros_like(self.layout.flat)
        return {**self.layout.views(flat), "rest": flat}

    @property
    def params(self) -> State:
        return self.views | {name: self.whole(name, join(*self._halves(name))) for name in HALVED}

    def whole(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """What belongs to a layer's weights, (K, inputs, outputs), from its blocks."""
        return out_of_blocks(value, *self.sizes[name])

    def _halves(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self.weights[f"high.{name}"], self.weights[f"low.{name}"]

    @property
    def models(self) -> int:
        return len(self.views["dense3.bias"])

    def keep(self, index: torch.Tensor) -> None:
        self.forget_step()
        views = self.layout.views
        for tensors in (self.weights, *self._made_moments()):
            rest = FlatParameters({name: view[index] for name, view in views(tensors["rest"]).items()})
            if tensors is self.weights:
                kept = rest
            for name in tensors:
                tensors[name] = rest.flat if name == "rest" else tensors[name][index]
        self._lay_out(kept)

    def row_bytes(self, pool: torch.Tensor) -> int:
        return 16 * self.views["dense3.bias"].shape[1]  # logits and decisions; the rest is for ROWS_AT_ONCE only

    # forward

    def _images(self, pool: torch.Tensor) -> Images:
        """The pool as the kernels read it."""
        if pool not in self._seen:
            self._seen[pool] = Images(pool, self.compute)
        return self._seen[pool]

    def _forward(self, chosen: Chosen, record: bool) -> tuple[torch.Tensor, Trace]:
        """Logits of chosen images, and what the backward pass needs, which is whole with ``record`` only."""
        kernels, low = self.conv_kernels, self.layout.views(self.rounded)
        high, wide = chosen.images.height // 2, chosen.images.width // 2

        def room(high: int, wide: int, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = bias.new_empty(self.models, chosen.index.shape[1], high, wide, bias.shape[1])
            return out, torch.empty_like(out if record else out[:0], dtype=torch.uint8)

        pooled1, which1 = room(high, wide, low["conv1.bias"])
        pooled2, which2 = room((high - SIDE + 1) // 2, (wide - SIDE + 1) // 2, low["conv2.bias"])
        kernels.first_conv_pool(chosen, low["conv1.weight"], low["conv1.bias"], pooled1, which1)
        kernels.conv_pool(pooled1, low["conv2.weight"], low["conv2.bias"], pooled2, which2)
        flat = pooled2.flatten(2)  # height, width, channel: Keras' order
        hidden1 = self.dense_kernels.dense_relu(flat, self.weights[f"high.{LARGEST}"], low["dense1.bias"])
        inner = self.weights[f"high.{INNER}"], low["dense2.bias"]
        last = self.views["dense3.weight"], self.views["dense3.bias"]
        hidden2, logits = self.dense_kernels.head(hidden1, *inner, *last)
        return logits, Trace(pooled1, which1, pooled2, which2, hidden1, hidden2)

    @torch.no_grad()
    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        images = self._images(pool)
        if rows is None:
            rows = torch.arange(len(pool), device=pool.device).unsqueeze(0)
        parts = padded(rows, ROWS_AT_ONCE).split(ROWS_AT_ONCE, 1)
        return torch.cat([self._forward(Chosen(images, part), False)[0] for part in parts], 1)[:, : rows.shape[1]]

    # training

    @torch.no_grad()
    def train_step(self, batches: Batches) -> None:
        size, rows = self.settings.batch_size, batches.rows
        index = padded(rows.gather(1, batches.order), size)
        mate = None if batches.mate is None else padded(rows.gather(1, batches.mate), size)
        chosen = Chosen(self._images(batches.pool), index, mate, batches.mix)
        targets, weights = batches.labels()
        logits, trace = self._forward(chosen, record=True)
        # Rows that fill up the last batch push nowhere.
        pushing = logits[:, : targets.shape[1]]
        slope = batch_gradient(pushing, targets, weights, self.settings.squared, batches.coupling)
        spread = self._dense_gradients(slope, trace)
        self._conv_gradients(chosen, spread, trace)
        rest = self.weights["rest"], *(moment["rest"] for moment in self.moments), self.slopes["rest"]
        self.dense_kernels.adam(*rest, rate=self.step_size, copy=self.rounded)

    def _dense_gradients(self, slope: torch.Tensor, trace: Trace) -> torch.Tensor:
        """Train the layers in halves; fill in the gradients of the last layer and of all biases but the first.

        Returns the gradient at the outputs of the second convolution.
        """
        kernels, slopes = self.dense_kernels, self.slopes
        last = self.views["dense3.weight"], slopes["dense3.weight"], slopes["dense3.bias"]
        back2 = kernels.head_backward(slope, trace.hidden2, *last, slopes["dense2.bias"])
        back1 = torch.empty_like(trace.hidden1)
        kernels.dense_backward(trace.hidden1, back2, *self._trained(INNER), back1, slopes["dense1.bias"])
        spread, flat = self._before_pooling(trace), trace.pooled2.flatten(2)
        sums = slope.new_empty(self.models, flat.shape[-1])
        kernels.dense_backward(flat, back1, *self._trained(LARGEST), spread, sums, trace.which2)
        kernels.column_sums(sums.view(self.models, -1, spread.shape[-1]), slopes["conv2.bias"])
        return spread

    def _before_pooling(self, trace: Trace) -> torch.Tensor:
        """Room for the gradient at the outputs of the second convolution."""
        high, wide = (side - SIDE + 1 for side in trace.pooled1.shape[2:4])
        # A dropped odd row or column is never written, hence the zeros then.
        make = trace.pooled2.new_zeros if high % 2 or wide % 2 else trace.pooled2.new_empty
        return make(*trace.pooled2.shape[:2], high, wide, trace.pooled2.shape[-1])

    def _trained(self, name: str) -> tuple[torch.Tensor, ...]:
        """What a step of a layer in halves changes, and its size."""
        return *self._halves(name), *(moment[name] for moment in self.moments), self.step_size

    def _conv_gradients(self, chosen: Chosen, spread: torch.Tensor, trace: Trace) -> None:
        """Fill in the gradients of both convolutions' weights and of the first one's bias."""
        kernels, slopes = self.conv_kernels, self.slopes
        kernels.conv_weight_grad(trace.pooled1, spread, slopes["conv2.weight"])
        back = torch.empty_like(trace.pooled1)
        weight = self.layout.views(self.rounded)["conv2.weight"]
        kernels.conv_input_grad(spread, weight, trace.which1, back)
        first = slopes["conv1.weight"], slopes["conv1.bias"]
        kernels.first_conv_weight_grad(chosen, back, trace.which1, *first)


def padded(index: torch.Tensor, size: int) -> torch.Tensor:
    """Row numbers (K, n) filled up to a multiple of ``size`` per model, as the kernels read them."""
    return F.pad(index.to(torch.int32), (0, -index.shape[1] % size))


def in_blocks(weight: torch.Tensor, inputs: int, outputs: int) -> torch.Tensor:
    """Weights (K, n_in, n_out) in blocks, (K, down, across, inputs, outputs), with zeros behind the last of both."""
    whole = F.pad(weight, (0, -weight.shape[2] % outputs, 0, -weight.shape[1] % inputs))
    return whole.unflatten(2, (-1, outputs)).unflatten(1, (-1, inputs)).transpose(2, 3).contiguous()


def out_of_blocks(blocks: torch.Tensor, inputs: int, outputs: int) -> torch.Tensor:
    """The weights (K, inputs, outputs) of these blocks."""
    return blocks.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :inputs, :outputs].contiguous()


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 weights as two halves: the upper 16 bits, rounded to bfloat16, and the lower 16 bits."""
    bits = weight.view(torch.int32)
    upper = torch.where(weight == weight, (bits + 0x8000) >> 16, 0x7FC0)  # a NaN stays one in both
    return upper.to(torch.int16).view(torch.bfloat16), bits.to(torch.int16)


def join(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """The float32 weights of two halves, exactly."""
    return ((high.view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)).view(torch.float32)
