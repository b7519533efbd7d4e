"""One step of a stack of transformers by the kernels and by plain torch: how far apart the gradients are.

Run as a program with ``TRITON_INTERPRET=1`` it needs no GPU: see ``test_kernels.py``.
"""

import json

import torch

from lowchurn.nets._initial_weights import fresh_state
from lowchurn.nets._stacks._stack import Settings
from lowchurn.nets._stacks._transformer import TransformerStack
from lowchurn.nets.networks import transformer


def relative_errors(size, *, models, rows, length, vocabulary, device, low):
    """Relative error of the logits and of every gradient, with products in ``low`` against plain torch in float64."""
    from lowchurn.nets._kernels import transformer_gpu

    make = torch.Generator(device).manual_seed(0)
    network = transformer(size, length=length + 2, classes=3, vocabulary=vocabulary)
    params = fresh_state(network, network, torch.arange(models, device=device), torch.float32)
    for value in params.values():  # biases too: none is zero
        value += 0.1 * torch.randn(value.shape, device=device, generator=make)
    ids = torch.randint(vocabulary, (models, rows, length), device=device, generator=make)
    ids[torch.rand(ids.shape, device=device, generator=make) < 0.3] = 0  # one token many times, as padding is
    targets = torch.softmax(torch.randn(models, rows, 3, device=device, generator=make), -1)
    weights = torch.rand(models, rows, device=device, generator=make)
    plain = TransformerStack(
        network, {name: value.double() for name, value in params.items()}, Settings(torch.device(device), torch.float64)
    )
    fused = TransformerStack(network, params, Settings(torch.device(device), torch.float32))
    fused.kernels, fused.compute = transformer_gpu, low
    fused._lay_out(fused.layout)
    errors = {"logits": _error(fused.outputs(ids), plain.outputs(ids))}
    for stack in (fused, plain):
        stack.steps = 1
        kind = stack.settings.dtype
        stack.step(ids, targets.to(kind), weights.to(kind), None)
    one, other = (stack.layout.views(stack.moments[0]["flat"]) for stack in (fused, plain))
    return errors | {name: _error(one[name], other[name]) for name in other}


def _error(one, other):
    return float((one.double() - other).norm() / other.norm())


if __name__ == "__main__":
    from lowchurn.nets._kernels import attention_gpu, large_gpu, transformer_gpu

    transformer_gpu.TOKENS = 16  # so that equal tokens lie in several blocks
    small = {"BM": 16}  # interpreted tiles are slow
    attention_gpu.TILES |= {"narrow": {32: small | {"BN": 16}}, "narrow grad": {32: small}}
    wide = small | {"CHUNK": 32}
    attention_gpu.TILES |= {"probabilities": wide, "score grad": wide}
    attention_gpu.TILES |= {"weighted": wide | {"BN": 16}, "token": wide | {"BN": 16}}
    cases = {"models": 2, "rows": 3, "device": "cpu"}
    # Rounded to 16 bits of a kind that the interpreter can multiply, which it cannot with bfloat16.
    found = [relative_errors(1, length=20, vocabulary=11, low=torch.float32, **cases),
             relative_errors(2, length=9, vocabulary=300, low=torch.float32, **cases),
             relative_errors(4, length=9, vocabulary=300, low=torch.float16, **cases)]  # fmt: skip
    large_gpu.LEAST = 0  # products of 16 bits, as if they were large
    print(json.dumps([*found, relative_errors(4, length=9, vocabulary=300, low=torch.float16, **cases)]))
