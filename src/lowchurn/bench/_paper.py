"""What the paper prints: its tables' captions, two tables of numbers, and how often distillation is best."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from importlib import resources

from lowchurn.bench._datasets import names_of

FCN = tuple(f"fcn-{10**k}" for k in range(1, 6))
CONVNET = tuple(f"convnet-{2**k}" for k in range(5))
TRANSFORMER = tuple(f"transformer-{2**k}" for k in range(5))
RESNET = ("resnet-50", "resnet-101", "resnet-152")
METRIC = "under churn at cold accuracy metric"


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper: what it covers, and the share of rows (in percent) in which distillation is best.

    ``words`` is what the paper says where it gives no number; ``parts`` are those that it is printed in.
    """

    name: str
    caption: str
    datasets: tuple[str, ...]
    networks: tuple[str, ...]
    initial: int
    distill_best: float | None = None
    words: str = ""
    parts: int = 1

    @property
    def size(self) -> int:
        """The number of its rows."""
        return len(self.datasets) * len(self.networks)

    @property
    def claim(self) -> str:
        """How often distillation is best in it, in words; empty where the paper does not say it."""
        if self.distill_best is None:
            return self.words
        count = self.distill_best * self.size / 100
        if abs(count - round(count)) < 1e-6:
            return f"in {round(count)} of {self.size} rows ({self.distill_best:g} %)"
        return f"in {self.distill_best:g} % of {self.size} rows"

    @property
    def validation(self) -> tuple[int, ...]:
        """Rows that training is stopped on: the paper's, then fewer, for data sets that have no more left."""
        return (1000, 500) if self.initial >= 10000 else (100,)

    def split(self) -> list[PaperTable]:
        """The parts that it is printed in."""
        width = math.ceil(len(self.datasets) / self.parts)
        return [
            replace(
                self,
                name=f"{self.name}-part{k}",
                caption=f"{self.caption}, part {k} of {self.parts}",
                datasets=self.datasets[(k - 1) * width : k * width],
            )
            for k in range(1, self.parts + 1)
        ]


SMALL_COLOUR = ("svhn", "cifar10")
TABLES: tuple[PaperTable, ...] = (
    PaperTable(
        "table1", f"Results for OpenML datasets {METRIC} (fcn-1000)", names_of("openml"), ("fcn-1000",), 1000, 100.0
    ),
    PaperTable(
        "table2",
        f"Results for MNIST variants, SVHN and CIFAR10 {METRIC} (convnet-4)",
        names_of("mnist-variants") + SMALL_COLOUR,
        ("convnet-4",),
        1000,
        100.0,
    ),
    *(
        PaperTable(f"openml{n}", f"OpenML datasets, initial size {n}, {METRIC}", names_of("openml"), FCN, n, wins)
        for n, wins in ((100, 52.0), (1000, 84.0))
    ),
    *(
        PaperTable(
            f"mnist{n}", f"MNIST variants, initial size {n}, {METRIC}", names_of("mnist-variants"), CONVNET, n, wins
        )
        for n, wins in ((100, 48.0), (1000, 84.0), (10000, 64.0))
    ),
    *(
        PaperTable(f"cifar{n}", f"SVHN and CIFAR, initial size {n}, {METRIC}", SMALL_COLOUR, CONVNET, n, wins)
        for n, wins in ((100, 80.0), (1000, 100.0), (10000, 100.0))
    ),
    *(
        PaperTable(
            f"celeba{n}", f"CelebA tasks, initial size {n}, {METRIC}", names_of("celeba"), CONVNET, n, wins, parts=4
        )
        for n, wins in ((100, 96.0), (1000, 79.0), (10000, 91.5))
    ),
    PaperTable(
        "resnet", f"CIFAR10 and CIFAR100, residual networks, {METRIC}", ("cifar10", "cifar100"), RESNET, 1000, 100.0
    ),
    *(
        PaperTable(
            f"imdb{n}",
            f"IMDB, transformers, initial size {n}, {METRIC}",
            ("imdb",),
            TRANSFORMER,
            n,
            words=f"in {words}",
        )
        for n, words in (
            (100, "the larger networks"),
            (1000, "all but one row of this table and that of 10000"),
            (10000, "all but one row of this table and that of 1000"),
        )
    ),
)


def printed() -> dict[str, dict[str, dict[str, float]]]:
    """Table -> data set -> method -> churn at cold accuracy in percent as the paper prints it; NaN is its N/A."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    text = resources.files("lowchurn.bench").joinpath("paper_tables.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        table, dataset = row.pop("table"), row.pop("dataset")
        numbers = {method: float(value) if value else math.nan for method, value in row.items()}
        found.setdefault(table, {})[dataset] = numbers
    return found
