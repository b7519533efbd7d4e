"""The loss of a batch of many models, and its gradient at their logits.

Every way of training a stack goes forward to logits, asks here for the gradient there, and goes backward from it: so
soft targets, row weights, both losses and coupled twins are written once.
"""

from __future__ import annotations

import torch


def target_gradient(logits: torch.Tensor, targets: torch.Tensor, squared: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss against soft targets, one value a row, and its gradient at the logits.

    Cross-entropy, or Keras' mean squared error of the probabilities. Targets need not sum to one.
    """
    if squared:
        proba = torch.softmax(logits, dim=-1)
        gap = proba - targets
        return gap.square().mean(dim=-1), _through_softmax(proba, gap * (2 / logits.shape[-1]))
    log_proba = torch.log_softmax(logits, dim=-1)
    loss = -(targets * log_proba).sum(dim=-1)
    return loss, targets.sum(dim=-1, keepdim=True) * log_proba.exp() - targets


def twin_gradient(logits: torch.Tensor, other: torch.Tensor, squared: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss between two twins, both ways, and its gradient at the first one's logits, through both arguments."""
    proba, other_proba = torch.softmax(logits, dim=-1), torch.softmax(other, dim=-1)
    if squared:
        gap = proba - other_proba
        return 2 * gap.square().mean(dim=-1), _through_softmax(proba, gap * (4 / logits.shape[-1]))
    log_proba, other_log = torch.log_softmax(logits, dim=-1), torch.log_softmax(other, dim=-1)
    toward = -(proba * other_log).sum(dim=-1)
    loss = toward - (other_proba * log_proba).sum(dim=-1)
    return loss, proba * (-other_log - toward.unsqueeze(-1)) + proba - other_proba


def batch_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    squared: bool,
    coupling: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient at the logits (K, B, m) of each model's mean weighted loss over its batch.

    With ``coupling`` (K / 2,), models 2p and 2p + 1 are twins whose loss has this share between them.
    """
    _, gradient = target_gradient(logits, targets, squared)
    if coupling is not None:
        share = coupling.repeat_interleave(2).view(-1, 1, 1)
        partner = logits.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
        gradient = (1 - share) * gradient + share * twin_gradient(logits, partner, squared)[1]
    return gradient * (weights / logits.shape[1]).unsqueeze(-1)


def _through_softmax(proba: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return proba * (gradient - (proba * gradient).sum(dim=-1, keepdim=True))
