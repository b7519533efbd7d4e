"""The loss of many models on their rows, and its gradient at their logits.

Every way of training a stack goes forward to logits, takes the gradient there from here, and goes backward from it: so
soft targets, row weights, both losses and coupled twins are written once.
"""

from __future__ import annotations

import torch


def target_loss(logits: torch.Tensor, targets: torch.Tensor, squared: bool) -> torch.Tensor:
    """Loss per row against soft targets: cross-entropy, or Keras' mean squared error of the probabilities."""
    if squared:
        return (torch.softmax(logits, dim=-1) - targets).square().mean(dim=-1)
    return -(targets * torch.log_softmax(logits, dim=-1)).sum(dim=-1)


def target_gradient(logits: torch.Tensor, targets: torch.Tensor, squared: bool) -> torch.Tensor:
    """Gradient of :func:`target_loss` at the logits; targets need not sum to one."""
    if squared:
        proba = torch.softmax(logits, dim=-1)
        return _through_softmax(proba, (proba - targets) * (2 / logits.shape[-1]))
    return targets.sum(dim=-1, keepdim=True) * torch.log_softmax(logits, dim=-1).exp() - targets


def twin_gradient(logits: torch.Tensor, other: torch.Tensor, squared: bool) -> torch.Tensor:
    """Gradient at the first twin's logits of the loss between two twins, both ways, through both arguments."""
    proba, other_proba = torch.softmax(logits, dim=-1), torch.softmax(other, dim=-1)
    if squared:
        return _through_softmax(proba, (proba - other_proba) * (4 / logits.shape[-1]))
    # Relative to the class that is likeliest here: the difference of two large numbers would leave their rounding.
    relative = other - other.gather(-1, proba.argmax(dim=-1, keepdim=True))
    return proba * ((proba * relative).sum(dim=-1, keepdim=True) - relative) + proba - other_proba


def batch_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    squared: bool,
    coupling: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient at the logits (K, B, m) of each model's mean weighted loss over its batch."""
    gradient = target_gradient(logits, targets, squared)
    if coupling is not None:  # (K / 2,): models 2p and 2p + 1 are twins with this share of the loss between them
        share = coupling.repeat_interleave(2).view(-1, 1, 1)
        partner = logits.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
        gradient = (1 - share) * gradient + share * twin_gradient(logits, partner, squared)
    return gradient * (weights / logits.shape[1]).unsqueeze(-1)


def _through_softmax(proba: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return proba * (gradient - (proba * gradient).sum(dim=-1, keepdim=True))
