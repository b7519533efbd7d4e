"""How candidates come about: where weights start, what rows aim at, what is averaged of trained models.

``ALL`` lists the strategies; ``PAPER`` those of the paper, the first eight.
"""

from lowchurn.strategies._all import ALL, PAPER, strategy_from
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
from lowchurn.strategies._plan import Plan, Recipe, Training, plan
from lowchurn.strategies._sticky import Sticky
from lowchurn.strategies._strategy import (
    STARTS,
    TENTHS,
    Blend,
    Group,
    Parameter,
    Start,
    Strategy,
    decide,
    member_seed,
    one_hot,
    paper_grid,
)

__all__ = [
    "Anchor",
    "CoDistill",
    "ColdStart",
    "Constrained",
    "Dissonance",
    "Distill",
    "FocalDistill",
    "Interpolate",
    "LabelSmoothing",
    "LocalSmoothing",
    "Mixup",
    "ServedMixture",
    "ShrinkPerturb",
    "Soup",
    "Sticky",
    "Strategy",
    "TwoTeachers",
    "WarmStart",
    "paper_grid",
    "plan",
    "strategy_from",
]
