"""
CatBoost with categories
========================

A fitted CatBoost model contains the names of its categorical columns, so they are not
given again for the retrain. Every region keeps the budget by itself.
"""

# %%
# Orders of a shop, and whether they are returned. Two columns are text.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from catboost import CatBoostClassifier

from lowchurn import LowChurnClassifier

rng = np.random.default_rng(0)
n = 9_000
X = pd.DataFrame(
    {
        "region": rng.choice(["north", "south", "west"], n, p=[0.6, 0.3, 0.1]),
        "kind": rng.choice(["shoes", "shirts", "bags", "hats"], n),
        "price": rng.gamma(3, 20, n).round(2),
        "items": rng.poisson(2, n) + 1,
    }
)
odds = (
    0.9 * (X.kind == "shoes")
    + 0.02 * (X.price - 60)
    - 0.4 * (X.region == "west")
    + 0.15 * X["items"]
    - 0.6
)
y = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "returned", "kept")

settings = {
    "iterations": 120,
    "depth": 5,
    "verbose": False,
    "thread_count": 1,
    "allow_writing_files": False,
}
base = CatBoostClassifier(**settings, random_seed=0).fit(
    X[:1500], y[:1500], cat_features=["region", "kind"]
)

# %%
# ``by="region"`` makes a slice of every region, and each of them changes at most 3 %
# of its decisions.
model = LowChurnClassifier(base=base, max_churn=0.03, by="region", random_state=0)
model.fit(X[:5000], y[:5000], new=np.arange(5000) >= 1500)
for sentence in model.selection_.sentences:
    print(sentence)

# %%
# The same regions on rows that no model has seen:
plain = CatBoostClassifier(**settings, random_seed=1).fit(
    X[:5000], y[:5000], cat_features=["region", "kind"]
)
later, before = X[5000:], base.predict(X[5000:])
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
regions = ["north", "south", "west"]
for place, (name, one, color) in enumerate(
    [("plain retrain", plain, "#c9593f"), ("3 % in every region", model, "#3b8ea5")]
):
    changed = (
        pd.Series(np.ravel(one.predict(later)) != np.ravel(before))
        .groupby(later["region"].to_numpy())
        .mean()
    )
    bars = axes.bar(
        np.arange(3) + 0.4 * place - 0.2,
        100 * changed[regions],
        0.38,
        color=color,
        label=name,
    )
    axes.bar_label(bars, fmt="%.1f", fontsize=8)
axes.axhline(3, color="gray", linestyle="--", linewidth=1)
axes.set_xticks(range(3), regions)
axes.set(ylabel="decisions that changed, %", title="Every region keeps the budget")
axes.legend(fontsize=8)
axes.margins(y=0.15)
plt.show()
