"""What was measured and what was chosen, as plain records that print well."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowchurn._charts import Chart
from lowchurn._display import brief_share, churn_text, interval_text, setting_words, share_text
from lowchurn._estimates import Estimate
from lowchurn._frontier_chart import plot_frontier
from lowchurn.strategies import ALL

if TYPE_CHECKING:
    import pandas as pd

NAN = math.nan
NO_INTERVAL = (math.nan, math.nan)

FEW = 3  # parameters that are always shown


@dataclass(frozen=True)
class Candidate:
    """One row of the frontier: how a model came about and what it does on rows held out for choosing.

    Attributes
    ----------
    strategy : str
        The name of the strategy that it was made by.
    parameters : dict
        The strategy's parameters, such as ``{"lam": 0.5, "start": "cold"}``.
    dial : float
        Where it lies between the new model (0) and the base (1); NaN for candidates that are not on a dial.
    dial_parameter : str
        The parameter that is the position on the dial; empty where there is none.
    risk : float
        Mean score (log-loss by default).
    accuracy, churn, broken : float
        Shares of rows: decided rightly; decided differently from the base (mean divergence for soft churn);
        right in the base and wrong here.
    accuracy_interval, churn_interval, broken_interval, fixed_interval : (float, float)
        95 % intervals.
    status : {"trained", "kept", "failed", "skipped"}
        Skipped: the learner cannot do it. Kept: the base itself.
    reason : str
        Why it failed or was skipped.
    seconds : float
        Time of its training, NaN where several were trained together.
    fixed : float
        Share of rows wrong in the base and right here.
    rows : float
        Held-out rows that it was measured on; with unequal weights Kish's effective number of them.
    accuracy_change : float
        How much more accurate it is than the base on the same rows: ``fixed`` less ``broken``.
    accuracy_change_interval : (float, float)
        The 95 % interval of that paired difference (Tango's).
    churn_by : dict of str to float
        Churn among the rows of each class that the base decides, or of each slice, where these have limits.
    churn_at : dict of str to float
        Churn that all rows would have at the margin of each of these groups; it stands for small ones.
    models : int
        Models that answer every row where this is served, the base among them where its decisions are kept; 0 where
        there is nothing to serve.
    setting, name : str
        The parameters, and the strategy with them, for display.

    Examples
    --------
    >>> from lowchurn.estimator import Candidate
    >>> skipped = Candidate("distill", {"lam": 0.5, "start": "warm"}, status="skipped", reason="no such start")
    >>> skipped.name, skipped.churn
    ('distill(lam=0.5, start=warm)', nan)
    """

    strategy: str
    parameters: dict[str, float | int | str] = field(default_factory=dict)
    dial: float = NAN
    dial_parameter: str = ""
    risk: float = NAN
    accuracy: float = NAN
    churn: float = NAN
    broken: float = NAN
    accuracy_interval: tuple[float, float] = NO_INTERVAL
    churn_interval: tuple[float, float] = NO_INTERVAL
    status: str = "trained"
    reason: str = ""
    seconds: float = NAN
    fixed: float = NAN
    broken_interval: tuple[float, float] = NO_INTERVAL
    fixed_interval: tuple[float, float] = NO_INTERVAL
    rows: float = NAN
    accuracy_change: float = NAN
    accuracy_change_interval: tuple[float, float] = NO_INTERVAL
    models: int = 0
    churn_by: dict[str, float] = field(default_factory=dict)
    churn_at: dict[str, float] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The parameters in words; of many, those that are not as they are by default."""
        if len(self.parameters) <= FEW:
            return setting_words(self.parameters)
        defaults = {k: v for c in ALL if c.name == self.strategy for k, v in c().parameters.items() if k not in c.grid}
        return setting_words({k: v for k, v in self.parameters.items() if k not in defaults or v != defaults[k]})

    @property
    def name(self) -> str:
        return f"{self.strategy}({self.setting})" if self.parameters else self.strategy

    def record(self) -> dict[str, Any]:
        """The fields by name, and the setting for display."""
        fields = dataclasses.asdict(self)
        return {
            "strategy": fields.pop("strategy"),
            "parameters": fields.pop("parameters"),
            "setting": self.setting,
        } | fields


class Frontier(list[Candidate]):
    """The candidates as a list that prints as a table; ``to_pandas`` and ``records`` for other uses.

    Examples
    --------
    >>> from lowchurn.estimator import Candidate, Frontier
    >>> Frontier([Candidate("cold", risk=0.31, accuracy=0.9, churn=0.08, broken=0.03)])
    strategy  setting  risk    accuracy  churn   broken  status   reason
    cold               0.3100  90.00 %   8.00 %  3.00 %  trained
    """

    def __init__(self, candidates: Iterable[Candidate] = (), hard: bool = True) -> None:
        super().__init__(candidates)
        self.hard = hard  # soft churn is a mean divergence and no share of rows

    def records(self) -> list[dict[str, Any]]:
        """One dict per candidate: its fields, and its setting for display."""
        return [candidate.record() for candidate in self]

    def to_pandas(self) -> pd.DataFrame:
        """A data frame; needs pandas."""
        import pandas as pd

        return pd.DataFrame(self.records(), columns=list(Candidate("").record()))

    def plot(
        self,
        path: str | Path | None = None,
        *,
        selection: Selection | None = None,
        max_churn: float | None = None,
        churn: str = "hard",
    ) -> Chart:
        """Accuracy and broken decisions against churn, with intervals: a curve for each family and setting.

        Dials and margins are curves, and so are lambdas of distillation; other candidates are points. The bands are the
        interval of the change of accuracy against the base on the same rows. Where accuracy was not measured (on
        traffic without labels) it is churn along the curves.

        Parameters
        ----------
        path : path, optional
            Where to write it as well: ``.svg``, ``.png`` or ``.html`` (one page that loads nothing). PNG and HTML need
            ``pip install "lowchurn[report]"``.
        selection : Selection, optional
            What is served, to mark it: ``model.selection_``.
        max_churn : float, optional
            The budget, as a line.
        churn : {"hard", "soft"}
            Show churn as a share of decisions, or as a plain number.

        Returns
        -------
        Chart
            It shows itself in a notebook; ``save`` writes it to a file.

        Examples
        --------
        >>> from lowchurn.estimator import Candidate, Frontier
        >>> frontier = Frontier([Candidate("cold", accuracy=0.9, churn=0.08)])
        >>> for a in (0.0, 0.5, 1.0):
        ...     position = {"parameters": {"toward_base": a}, "dial": a, "dial_parameter": "toward_base"}
        ...     frontier.append(Candidate("soup", **position, accuracy=0.9, churn=0.05 * (1 - a)))
        >>> chart = frontier.plot(max_churn=0.03)
        >>> chart.title, [mark.series for mark in chart.marks if mark.kind == "line"]
        ('Accuracy against churn', ['soup'])
        >>> Frontier().plot()
        Traceback (most recent call last):
        ...
        ValueError: Frontier.plot: there must be a candidate with a measured churn, got 0 without...
        """
        return plot_frontier(self, path, None if selection is None else selection.served, max_churn, churn)

    def __repr__(self) -> str:
        head = ["strategy", "setting", "risk", "accuracy", "churn", "broken", "status", "reason"]
        rows = [head]
        for c in self:
            churn = share_text(c.churn, digits=2) if self.hard else f"{c.churn:.4f}"
            numbers = [f"{c.risk:.4f}", share_text(c.accuracy, digits=2), churn, share_text(c.broken, digits=2)]
            shown = ["-" if text in ("nan", "undefined") else text for text in numbers]
            rows.append([c.strategy, c.setting, *shown, c.status, c.reason])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)).rstrip() for r in rows)


@dataclass(frozen=True)
class Selection:
    """What is served, and why.

    Attributes
    ----------
    served : dict of str to float
        Names of the served candidates and their weights; one name for ``select="single"``.
    rule : str
        The rule in words.
    feasible : bool
        Whether the rule could be kept on the held-out rows.
    risk, accuracy, churn, broken : float
        Of what is served, on the rows held out for choosing.
    trainings : int
        Models trained in all, the plain retrain among them.
    rows : dict
        How many rows were used to train, choose and certify; and how many rows of traffic churn was measured on.
    notes : tuple of str
        What else to know: that the base is served unchanged and why, what failed, how many rounds were trained.
    base_accuracy, plain_accuracy, plain_churn : float
        Of the base and of a plain retrain, on the same rows.
    models : int
        Models that answer every row, the base among them where its decisions are kept.
    fixed : float
        Share of rows wrong in the base and right in what is served.
    accuracy_change : float
        How much more accurate than the base it is on the same rows: ``fixed`` less ``broken``.
    accuracy_change_interval : (float, float)
        The 95 % interval of that paired difference.
    accuracy_cost : float
        How much less accurate than a plain retrain it is on the same rows: what the budget costs.
    budget_left : float
        The budget less the churn; below zero where the budget could not be kept, NaN without a budget.
    hard : bool
        Whether churn is the share of changed decisions; soft churn is a mean divergence.
    sentences : tuple of str
        All of it in words; ``str`` joins them.

    Examples
    --------
    >>> from lowchurn.estimator import Selection
    >>> print(Selection({"distill(lam=0.4)": 1.0}, "most accurate within a churn of 2 %", True, 0.3, 0.9, 0.018, 0.004,
    ...                 trainings=3, rows={"train": 800, "choose": 200, "certify": 0}))
    distill(lam=0.4): most accurate within a churn of 2 %. Accuracy 90 %, churn 1.8 %, broken 0.4 % on 200 held-out
    rows; 3 trainings.
    """

    served: dict[str, float]
    rule: str
    feasible: bool
    risk: float
    accuracy: float
    churn: float
    broken: float
    trainings: int
    rows: dict[str, int]
    notes: tuple[str, ...] = ()
    base_accuracy: float = NAN
    plain_accuracy: float = NAN
    plain_churn: float = NAN
    models: int = 1
    fixed: float = NAN
    accuracy_change: float = NAN
    accuracy_change_interval: tuple[float, float] = NO_INTERVAL
    accuracy_cost: float = NAN
    budget_left: float = NAN
    hard: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(self.notes))  # a list where it was read from a file

    def __str__(self) -> str:
        return " ".join(self.sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        parts = [name if weight == 1 else f"{weight:.3g} {name}" for name, weight in self.served.items()]
        many = "training" if self.trainings == 1 else "trainings"
        measured = "" if math.isnan(self.churn) else f"{self._measured}; "
        return (
            f"{' + '.join(parts)}: {self.rule}.",
            f"{measured}{self.trainings} {many}.",
            *filter(None, [self._changed, self._beside, self._left, self._models]),
            *self.notes,
        )

    @property
    def _measured(self) -> str:
        held_out, traffic = f"on {self.rows['choose']} held-out rows", self.rows.get("traffic", 0)
        if not traffic:
            return f"{self._accuracy}, churn {self._amount(self.churn)}, broken {brief_share(self.broken)} {held_out}"
        churn = f"Churn {self._amount(self.churn)} on {traffic} rows of traffic"
        if math.isnan(self.accuracy):
            return f"{churn}, accuracy is not measured because all rows with labels were trained on"
        return f"{churn}, {self._accuracy.lower()}, broken {brief_share(self.broken)} {held_out}"

    @property
    def _accuracy(self) -> str:
        return f"Accuracy {brief_share(self.accuracy)}"

    def _amount(self, churn: float) -> str:
        return churn_text(churn, self.hard)

    @property
    def _changed(self) -> str:
        """The change of accuracy against the base with its interval, which the accuracies alone do not have."""
        if math.isnan(self.accuracy_change) or not any((self.accuracy_change, self.fixed, self.broken)):
            return ""
        change = interval_text(Estimate(self.accuracy_change, *self.accuracy_change_interval, 0), signed=True)
        kinds = f"{brief_share(self.fixed)} fixed, {brief_share(self.broken)} broken"
        return f"Its accuracy differs from the base's by {change}: {kinds}."

    @property
    def _beside(self) -> str:
        """What the base and a plain retrain do, and the price of the budget."""
        if math.isnan(self.plain_churn):
            return ""
        if math.isnan(self.base_accuracy) or math.isnan(self.plain_accuracy):
            return f"A plain retrain has a churn of {self._amount(self.plain_churn)}."
        plain = f"a plain retrain {brief_share(self.plain_accuracy)} with churn {self._amount(self.plain_churn)}"
        beside = f"The base has an accuracy of {brief_share(self.base_accuracy)}, {plain}"
        if self.churn >= self.plain_churn:
            return f"{beside}."
        points = 100 * (self.plain_accuracy - self.accuracy)
        price = f"costs {points:.1f} points" if points >= 0.05 else "costs no accuracy here"
        return f"{beside}: less churn {price}."

    @property
    def _left(self) -> str:
        budget = self.budget_left + self.churn
        if math.isnan(budget) or budget <= 0:
            return ""
        if self.budget_left < -1e-9 * budget:
            return f"The budget of {self._amount(budget)} is exceeded by {self._amount(-self.budget_left)}."
        left = max(self.budget_left, 0.0)
        part = f"{self._amount(left)} of {self._amount(budget)}"
        return f"{share_text(left / budget, digits=0)} of the budget is left ({part})."

    @property
    def _models(self) -> str:
        return "" if self.models < 2 else f"{self.models} models answer every row."
