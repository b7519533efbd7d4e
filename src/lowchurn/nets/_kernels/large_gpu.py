"""Products that are large enough for torch's own library of products, one model after the other.

The library chooses its way of multiplying by the shapes that it is given, the number of products among them. A call for
each model has the shapes of one model alone, so its bits do not depend on how many are trained beside it. That pays
where a product of one model keeps a whole GPU busy. Products accumulate in float32, as torch does by default.
"""

import torch

LEAST = 4e9  # multiplications of a product for which a call of the library is the faster way on an H200


def pays(x, columns):
    """Whether the products of x (K, rows, inner) with matrices of so many columns are large enough."""
    return x.element_size() == 2 and x.shape[1] * x.shape[2] * columns >= LEAST


def product(x, weight, bias=None, add=None):
    """``x @ weight``, plus ``bias`` (K, columns), rounded as x is, or ``add`` (K, rows, columns)."""
    out = x.new_empty(*x.shape[:2], weight.shape[2])
    for k, own in enumerate(out):
        if bias is not None:
            torch.addmm(bias[k].to(x.dtype), x[k], weight[k], out=own)
        elif add is not None:
            torch.addmm(add[k], x[k], weight[k], out=own)
        else:
            torch.mm(x[k], weight[k], out=own)
    return out


def weighted_tokens(weights, x, out):
    """Write the tokens of each row, x (K, rows, T, D), summed by weights (K, rows, queries, T)."""
    for each, tokens, own in zip(weights, x, out, strict=True):
        torch.bmm(each, tokens, out=own)


def sums_of_weighted_tokens(weights, x, heads):
    """The sums over rows and their tokens of what :func:`weighted_tokens` writes, of each head: (K, heads, D)."""
    models, rows, queries, length = weights.shape
    out = torch.empty(models, heads, x.shape[3], device=x.device)
    for each, tokens, own in zip(weights, x, out, strict=True):
        total = each.view(rows, queries // heads, heads, length).sum(1, dtype=torch.float32)
        torch.mm(total.transpose(0, 1).reshape(heads, -1), tokens.reshape(-1, tokens.shape[2]).float(), out=own)
    return out
