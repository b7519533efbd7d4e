"""How candidates come about: where weights start, what rows aim at, what is averaged of trained models.

``ALL`` lists the strategies; ``PAPER`` those of the paper, the first eight. ``plan`` returns what has to be trained for
some of them.
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
from lowchurn.strategies._plan import plan
from lowchurn.strategies._strategy import Strategy, member_seed, paper_grid

# isort: split
# For other rooms, not public
from lowchurn.strategies._plan import Plan as Plan
from lowchurn.strategies._plan import Recipe as Recipe
from lowchurn.strategies._plan import Training as Training
from lowchurn.strategies._plan import trainings as trainings
from lowchurn.strategies._strategy import STARTS as STARTS
from lowchurn.strategies._strategy import TENTHS as TENTHS
from lowchurn.strategies._strategy import Blend as Blend
from lowchurn.strategies._strategy import Group as Group
from lowchurn.strategies._strategy import Parameter as Parameter
from lowchurn.strategies._strategy import Start as Start
from lowchurn.strategies._strategy import decide as decide
from lowchurn.strategies._strategy import one_hot as one_hot

__all__ = [
    "ALL",
    "PAPER",
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
    "Strategy",
    "TwoTeachers",
    "WarmStart",
    "member_seed",
    "paper_grid",
    "plan",
    "strategy_from",
]
