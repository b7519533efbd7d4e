"""The engine's slow twin: one model, one plain loop, autograd, Keras' Adam and early stopping."""

import copy
import math

import numpy as np
import torch

from lowchurn.nets import _random as draws


def keys(seed):
    return torch.tensor([seed])


def start_module(template, task, twin=False):
    """A module at the task's start weights."""
    from lowchurn.nets._initial_weights import fresh_state

    seeds = draws.twin_seeds(keys(task.seed)) if twin else keys(task.seed)
    fresh = {name: value[0] for name, value in fresh_state(template, template, seeds, torch.float64).items()}
    module = copy.deepcopy(template).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(fresh[name])
            if task.start is not None:
                parameter.copy_(task.base_share * task.start[name] + (1 - task.base_share) * fresh[name])
        for name, buffer in module.named_buffers():  # running statistics go with weights that are all the base's
            if task.start is not None and task.base_share == 1:
                buffer.copy_(task.start[name])
    return module


def row_loss(logits, targets, squared):
    if squared:
        return (logits.softmax(-1) - targets).square().mean(-1)
    return -(targets * logits.log_softmax(-1)).sum(-1)


def pair_loss(one, two, squared):
    if squared:
        return 2 * (one.softmax(-1) - two.softmax(-1)).square().mean(-1)
    return row_loss(one, two.softmax(-1), False) + row_loss(two, one.softmax(-1), False)


def plain_training(
    template, X, task, *, epochs, patience=5, batch_size=32, squared=False, lr=1e-3, restore_best=False, one_order=False
):
    """Train one task (or its pair) the obvious way; returns the module, the epochs and the last validation loss."""
    modules = [start_module(template, task)] + ([start_module(template, task, True)] if task.coupling else [])
    parameters = [p for module in modules for p in module.parameters()]
    m, v = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
    X = torch.as_tensor(X)
    X = X.double() if X.is_floating_point() else X
    rows, targets = torch.as_tensor(task.rows), torch.as_tensor(np.asarray(task.targets, dtype=float))
    weights = torch.ones(len(rows)).double() if task.weights is None else torch.as_tensor(task.weights).double()
    labels = torch.as_tensor(np.asarray(task.validation_targets, dtype=float))
    labels_only, multiplier = targets, 0.0
    best, waited, step, kept = math.inf, 0, 0, None
    for epoch in range(epochs):
        order = draws.shuffles(keys(task.seed), 0 if one_order else epoch, len(rows))[0]
        mate = draws.shuffles(keys(task.seed), epoch, len(rows), draws.MATE)[0]
        for b, part in enumerate(order.split(batch_size)):
            x, t, w = X[rows[part]], targets[part], weights[part]
            if task.mixing:
                steps = math.ceil(len(rows) / batch_size)
                share = draws.mixup_shares(keys(task.seed), torch.tensor([task.mixing]), epoch, steps)[0, b]
                other = mate.split(batch_size)[b]
                x, t, w = (
                    o + share * (a - o)  # equal tokens stay what they are
                    for a, o in ((x, X[rows[other]]), (t, targets[other]), (w, weights[other]))
                )
                x = x if X.is_floating_point() else x.long()  # words are mixed by their numbers and rounded down
            for module in modules:
                module.train()
            logits = [module(x) for module in modules]
            loss = sum(row_loss(z, t, squared) for z in logits)
            if task.coupling:
                loss = (1 - task.coupling) * loss + task.coupling * pair_loss(*logits, squared)
            gradients = torch.autograd.grad((w * loss).sum() / len(part), parameters, materialize_grads=True)
            step += 1
            rate = lr * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            with torch.no_grad():
                for p, a, b2, g in zip(parameters, m, v, gradients, strict=True):
                    a += (g - a) * 0.1
                    b2 += (g * g - b2) * 0.001
                    p -= rate * a / (b2.sqrt() + 1e-7)
        with torch.no_grad():
            held_out = X[torch.as_tensor(task.validation)]
            current = float(row_loss(modules[0].eval()(held_out), labels, squared).mean())
            if task.limit is not None:
                pull = torch.as_tensor(np.asarray(task.pull, dtype=float))
                churn = float((modules[0](X[rows]).argmax(-1) != pull.argmax(-1)).double().mean())
                multiplier = max(0.0, multiplier + 20 * (churn - task.limit))
                targets = (labels_only + multiplier * pull) / (1 + multiplier)
        if current < best:
            best, waited, kept = current, 0, copy.deepcopy(modules[0])
        else:
            waited += 1
        if waited >= patience or not math.isfinite(current):
            break
    return (kept if restore_best else modules[0]), epoch + 1, (best if restore_best else current)
