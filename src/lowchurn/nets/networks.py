"""The paper's networks, layer for layer, as plain modules that return logits.

Weights lie as in Keras, (in, out) for dense layers and (height, width, in, out) for convolutions, and images are
channels-last, so that thousands of networks stack into tensors that batched products take as they are. Starts are
Keras' defaults: Glorot uniform weights, zero biases, embeddings uniform in +-0.05.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from lowchurn._checks import check_choice, check_whole

Starts = dict[str, tuple[float, float]]  # (limit, constant) of a parameter: uniform in +-limit around the constant
ONES: Starts = {"weight": (0.0, 1.0), "bias": (0.0, 0.0)}
RESNET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Network(nn.Module):
    """A module whose weights start from rules of their own, the ``start`` of each layer."""

    def starts(self) -> Starts:
        layers = ((prefix, getattr(layer, "start", {})) for prefix, layer in self.named_modules())
        return {f"{prefix}.{name}": rule for prefix, start in layers for name, rule in start.items()}

    def check_rows(self, pool: torch.Tensor) -> None:
        """Refuse rows that the layers would take wrongly: a stack looks up a wrong token in the next model."""

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights."""
        starts = self.starts()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.is_meta:
                    continue  # it has a shape and no values: somebody counts the weights
                limit, constant = starts[name]
                draw = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_((2 * draw - 1) * limit + constant)


def _glorot(fan_in: int, fan_out: int) -> Starts:
    return {"weight": (math.sqrt(6 / (fan_in + fan_out)), 0.0), "bias": (0.0, 0.0)}


class Dense(nn.Module):
    """``x @ weight + bias`` with weight (in, out)."""

    def __init__(self, inputs: int, outputs: int, start: Starts | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.start = start or _glorot(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Conv(nn.Module):
    """A convolution of channels-last images with weight (side, side, in, out)."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1, same: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(side, side, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.stride = stride
        self.padding = (side - 1) // 2 if same else 0
        self.start = _glorot(side * side * inputs, side * side * outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.permute(3, 2, 0, 1)
        y = F.conv2d(x.permute(0, 3, 1, 2), weight, self.added(), self.stride, self.padding)
        return y.permute(0, 2, 3, 1)

    def added(self) -> torch.Tensor:
        """What is added to the outputs."""
        return self.bias


class NormalisedConv(Conv):
    """A convolution before a batch normalisation, which takes the bias away again while it trains.

    What the bias' gradient would contain is rounding, and Adam would blow that up to steps of its full rate.
    """

    def added(self) -> torch.Tensor:
        return self.bias.detach() if self.training else self.bias


class Embedding(nn.Module):
    """Rows of a table."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.start: Starts = {"weight": (0.05, 0.0)}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids]


class Norm(nn.Module):
    """Layer normalisation with Keras' epsilon of the example, 1e-6."""

    start = ONES

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, eps=1e-6)


class Fcn(Network):
    """One hidden layer of ``size`` rectified units."""

    def __init__(self, inputs: int, classes: int, size: int) -> None:
        super().__init__()
        self.hidden = Dense(inputs, size)
        self.output = Dense(size, classes)
        self.reset()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(F.relu(self.hidden(x)))


class Convnet(Network):
    """LeNet-5 with ``size`` times its filters: two convolutions with pooling, two dense layers, the output."""

    def __init__(self, shape: tuple[int, int, int], classes: int, size: int) -> None:
        super().__init__()
        height, width, channels = shape
        rest = [(side // 2 - 4) // 2 for side in (height, width)]
        if min(rest) < 1:
            raise ValueError(f"convnet: images must be at least 12 x 12, got {height} x {width}.")
        self.shape, self.classes, self.size = tuple(shape), classes, size
        self.conv1 = Conv(channels, 16 * size, 5, same=True)
        self.conv2 = Conv(16 * size, 24 * size, 5)
        self.dense1 = Dense(rest[0] * rest[1] * 24 * size, 128 * size)
        self.dense2 = Dense(128 * size, 84)
        self.dense3 = Dense(84, classes)
        self.reset()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.conv1, self.conv2):
            x = F.relu(F.max_pool2d(conv(x).permute(0, 3, 1, 2), 2)).permute(0, 2, 3, 1)  # relu of the largest
        x = F.relu(self.dense1(x.flatten(1)))  # Keras' order: height, width, channel
        return self.dense3(F.relu(self.dense2(x)))


class Transformer(Network):
    """One transformer block over token and position embeddings, averaged over positions, and the output.

    Each head has keys, queries and values as wide as the embedding, as in Keras' example; the three projections of
    all heads lie side by side in ``qkv``.
    """

    def __init__(self, length: int, classes: int, size: int, vocabulary: int) -> None:
        super().__init__()
        width, self.heads = 32 * size, 2 * size
        self.length, self.vocabulary, self.classes = length, vocabulary, classes
        self.token = Embedding(vocabulary, width)
        self.position = Embedding(length, width)
        # Keras keeps a projection as (in, heads, key) and takes all axes but the last two for a receptive field, so
        # its Glorot limits differ from those of the flat matrices.
        self.qkv = Dense(width, 3 * self.heads * width, _glorot(self.heads * width, width * width))
        self.out = Dense(self.heads * width, width, _glorot(self.heads * width, self.heads * width))
        self.norm1 = Norm(width)
        self.ff1 = Dense(width, 32 * size)
        self.ff2 = Dense(32 * size, width)
        self.norm2 = Norm(width)
        self.head = Dense(width, classes)
        self.reset()

    def check_rows(self, pool: torch.Tensor) -> None:
        least, most = (int(value) for value in pool.aminmax())
        if least < 0 or most >= self.vocabulary:
            wrong = least if least < 0 else most
            raise ValueError(f"train: tokens must be in 0 .. {self.vocabulary - 1}, the vocabulary, got {wrong}.")
        if pool.shape[1] > self.length:
            raise ValueError(
                f"train: rows must have at most {self.length} tokens, the network's length, got {pool.shape[1]}."
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ids = ids.long()
        rows, length = ids.shape
        x = self.token(ids) + self.position.weight[:length]
        q, k, v = (part.reshape(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, -1)
        x = self.norm1(x + self.out(attended))
        x = self.norm2(x + self.ff2(F.relu(self.ff1(x))))
        return self.head(x.mean(dim=1))


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation of channels-last images with the constants of Keras' residual networks."""

    start = ONES

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1.001e-5, momentum=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions around a shortcut; the first block of a stage projects it."""

    def __init__(self, inputs: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = NormalisedConv(inputs, width, 1, stride), BatchNorm(width)
        self.conv2, self.norm2 = NormalisedConv(width, width, 3, same=True), BatchNorm(width)
        self.conv3, self.norm3 = NormalisedConv(width, 4 * width, 1), BatchNorm(4 * width)
        shortcut = (NormalisedConv(inputs, 4 * width, 1, stride), BatchNorm(4 * width))
        self.shortcut = nn.Sequential(*shortcut) if project else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return F.relu(shortcut + self.norm3(self.conv3(x)))


class Resnet(Network):
    """A residual network with a stem for small images: one 3 x 3 convolution, no pooling before the first stage."""

    def __init__(self, shape: tuple[int, int, int], classes: int, depth: int) -> None:
        super().__init__()
        self.stem, self.norm = NormalisedConv(shape[2], 64, 3, same=True), BatchNorm(64)
        blocks: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(RESNET_BLOCKS[depth]):
            width = 64 * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width, stride, project=block == 0))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = Dense(channels, classes)
        self.reset()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean(dim=(1, 2)))


def _check_sizes(who: str, **sizes: int) -> None:
    for name, value in sizes.items():
        check_whole(who, name, value, high=2**63 - 1)


def fcn(size: int = 1000, *, inputs: int, classes: int) -> Fcn:
    """The paper's fcn-``size``: one hidden layer of ``size`` units.

    Examples
    --------
    >>> from lowchurn.nets.networks import fcn
    >>> sum(p.numel() for p in fcn(1000, inputs=20, classes=2).parameters())
    23002
    """
    _check_sizes("fcn", size=size, inputs=inputs, classes=classes)
    return Fcn(inputs, classes, size)


def convnet(size: int = 1, *, shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> Convnet:
    """The paper's convnet-``size``: LeNet-5 with ``size`` times its filters.

    Examples
    --------
    >>> from lowchurn.nets.networks import convnet
    >>> sum(p.numel() for p in convnet(1).parameters())
    98654
    """
    _check_sizes("convnet", size=size, classes=classes)
    return Convnet(shape, classes, size)


def transformer(size: int = 1, *, length: int = 200, classes: int = 2, vocabulary: int = 20000) -> Transformer:
    """The paper's transformer-``size``: one block over rows of token ids.

    Examples
    --------
    >>> from lowchurn.nets.networks import transformer
    >>> sum(p.numel() for p in transformer(1).parameters())
    657122
    """
    _check_sizes("transformer", size=size, length=length, classes=classes, vocabulary=vocabulary)
    return Transformer(length, classes, size, vocabulary)


def resnet(depth: int = 50, *, shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Resnet:
    """ResNet-50, -101 or -152 as in Keras (version 1, convolutions with biases), with a stem for small images.

    Examples
    --------
    >>> from lowchurn.nets.networks import resnet
    >>> len(resnet(50, classes=10).blocks)
    16
    """
    check_choice("resnet", "depth", depth, tuple(RESNET_BLOCKS))  # type: ignore[arg-type]
    _check_sizes("resnet", classes=classes)
    return Resnet(shape, classes, depth)
