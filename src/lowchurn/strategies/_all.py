"""The list of all strategies, and a strategy by its name and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lowchurn._checks import unknown_name
from lowchurn.strategies._dial import Interpolate, ServedMixture, Soup, TwoTeachers
from lowchurn.strategies._field import Constrained, Dissonance, FocalDistill, LocalSmoothing
from lowchurn.strategies._paper import (
    Anchor,
    CoDistill,
    ColdStart,
    Distill,
    LabelSmoothing,
    Mixup,
    ShrinkPerturb,
    WarmStart,
)
from lowchurn.strategies._strategy import Parameter, Strategy

PAPER: tuple[type[Strategy], ...] = (
    ColdStart,
    WarmStart,
    ShrinkPerturb,
    Mixup,
    LabelSmoothing,
    CoDistill,
    Anchor,
    Distill,
)
ALL: tuple[type[Strategy], ...] = (
    *PAPER,
    Soup,
    Interpolate,
    TwoTeachers,
    ServedMixture,
    FocalDistill,
    Dissonance,
    Constrained,
    LocalSmoothing,
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
    known = {f.name for f in dataclasses.fields(classes[name])}
    for parameter in parameters or {}:
        if parameter not in known:
            raise unknown_name(f"strategy_from({name!r})", "parameter", parameter, known)
    return classes[name](**(parameters or {}))
