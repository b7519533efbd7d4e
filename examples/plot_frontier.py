"""
The frontier: accuracy against churn
====================================

``frontier_`` contains every candidate that was tried, with its accuracy, churn and broken decisions on held-out rows.
Here sticky decisions, the dial of probabilities and the paper's distillation are compared on the same rows.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from lowchurn import LowChurnClassifier
from lowchurn.metrics import pareto_front
from lowchurn.strategies import Distill, ServedMixture, Sticky, paper_grid

X, y = make_classification(14_000, 10, n_informative=6, flip_y=0.08, class_sep=0.6, random_state=8)
kind = make_pipeline(PolynomialFeatures(2), StandardScaler(), LogisticRegression(C=0.3, max_iter=300))
base = kind.fit(X[:1200], y[:1200])

# %%
# A list of strategies is tried as it is: nine lambdas of distillation, and blends and margins that share one retrain.
margins = [Sticky(1, margin) for margin in np.linspace(0.02, 0.6, 16).round(3)]
blends = [ServedMixture(1, lam) for lam in np.linspace(0.1, 0.9, 9).round(1)]
model = LowChurnClassifier(
    base=base, max_churn=0.03, strategies=[*paper_grid(Distill), *blends, *margins], random_state=0
)
model.fit(X[:8000], y[:8000], new=np.arange(8000) >= 1200)
print(model.selection_)

# %%
# Distillation has to reach an accuracy by training; a margin spends its changes where the gain is largest.
table = model.frontier_.to_pandas()
colors = {"sticky": "#3b8ea5", "served-mix": "#8a6fb0", "distill": "#d0943c", "cold": "#c9593f"}
labels = {
    "sticky": "sticky decisions",
    "served-mix": "blend with the base",
    "distill": "distillation",
    "cold": "plain retrain",
}
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, rows in table.groupby("strategy"):
    rows = rows.sort_values("churn")
    axes.plot(
        100 * rows.churn,
        100 * rows.accuracy,
        "o-",
        markersize=4,
        color=colors.get(name, "gray"),
        label=labels.get(name, name),
    )
best = table.iloc[pareto_front(np.column_stack([1 - table.accuracy, table.churn]))]
axes.plot(
    100 * best.churn,
    100 * best.accuracy,
    "o",
    markersize=9,
    markerfacecolor="none",
    color="black",
    label="not beaten by any other",
)
axes.axvline(3, color="gray", linestyle="--", linewidth=1)
axes.set(
    xlabel="decisions that changed, %",
    ylabel="accuracy, %",
    title="All candidates on the held-out rows; the budget is 3 %",
)
axes.legend(fontsize=8)
plt.show()
