"""What the kernels of GPUs for fully connected networks have in common: how weights are stored, and Adam's step sizes.

Everything that belongs to a hidden unit is one column of ``params`` (K, d + 1 + c, h): rows ``0..d-1`` hold the input
weights, row ``d`` the bias, rows ``d+1..d+c`` the output weights.  `parameter_views` gives the usual ``w1`` (K, d, h),
``b1`` (K, h), ``w2`` (K, h, c).  The output bias ``b2`` (K, c) is a separate array.
"""

import functools

import torch

from lowchurn.nets._stacks._stack import BETA1, BETA2

# Beyond this many Adam steps the bias correction is 1 in float32 (0.999**20480 = 1.3e-9).
STEP_TABLE_LENGTH = 20480


def pack_parameters(w1, b1, w2):
    """Weights (K, d, h), (K, h), (K, h, c) in the storage of the kernels, (K, d + 1 + c, h)."""
    return torch.cat([w1, b1[:, None, :], w2.transpose(1, 2)], dim=1).contiguous()


def parameter_views(params, d):
    """Views ``w1`` (K, d, h), ``b1`` (K, h), ``w2`` (K, h, c) of packed parameters with `d` inputs."""
    return params[:, :d], params[:, d], params[:, d + 1 :].transpose(1, 2)


@functools.lru_cache(maxsize=8)
def step_sizes(device, learning_rate):
    """Bias-corrected Adam step size by number of steps already done, (STEP_TABLE_LENGTH,), rounded from float64.

    Later steps use the last entry.
    """
    t = torch.arange(1, STEP_TABLE_LENGTH + 1, dtype=torch.float64)
    sizes = learning_rate * torch.sqrt(1 - BETA2**t) / (1 - BETA1**t)
    return sizes.to(torch.float32).to(device)
