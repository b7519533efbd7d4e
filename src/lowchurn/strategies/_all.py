"""The list of all strategies, and a strategy by its name and parameters."""

from __future__ import annotations

from collections.abc import Mapping

import lowchurn.strategies._dial as dial
import lowchurn.strategies._field as field
import lowchurn.strategies._paper as paper
import lowchurn.strategies._sticky as sticky
from lowchurn._checks import unknown_name
from lowchurn.strategies._strategy import Parameter, Strategy, check_names

PAPER: tuple[type[Strategy], ...] = (
    paper.ColdStart,
    paper.WarmStart,
    paper.ShrinkPerturb,
    paper.Mixup,
    paper.LabelSmoothing,
    paper.CoDistill,
    paper.Anchor,
    paper.Distill,
)
ALL: tuple[type[Strategy], ...] = (
    *PAPER,
    dial.Soup,
    dial.Interpolate,
    dial.TwoTeachers,
    dial.ServedMixture,
    sticky.Sticky,
    field.FocalDistill,
    field.Dissonance,
    field.Constrained,
    field.LocalSmoothing,
)


def strategy_from(name: str, parameters: Mapping[str, Parameter] | None = None) -> Strategy:
    """The strategy with this name and these parameters; the inverse of ``name`` and ``parameters``.

    Parameters
    ----------
    name : str
        The name of one of :data:`ALL`, such as ``distill``.
    parameters : mapping, optional
        Parameters that differ from their defaults.

    Examples
    --------
    >>> from lowchurn.strategies import Soup, strategy_from
    >>> strategy_from("distill", {"lam": 0.3})
    Distill(lam=0.3, start='cold')
    >>> soup = Soup(members=4, toward_base=0.5)
    >>> strategy_from(soup.name, soup.parameters) == soup
    True
    """
    classes = {cls.name: cls for cls in ALL}
    if name not in classes:
        raise unknown_name("strategy_from", "strategy", name, classes)
    check_names(f"strategy_from({name!r})", classes[name], parameters or {})
    return classes[name](**(parameters or {}))
