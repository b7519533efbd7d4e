"""
A base that is only a table of decisions
========================================

The model in production may be a vendor's service, or gone. A table of what it decided is enough: ``base_proba=``
takes decisions or probabilities. At prediction the decisions that rows have now take the place of the base.
"""

# %%
# Only ids and decisions are known of the old system. Here a forest stands for it, and is not used again.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from lowchurn import LowChurnClassifier
from lowchurn.metrics import flips

X, y = make_classification(9_000, 12, n_informative=6, flip_y=0.1, class_sep=0.7, random_state=5)
ids = np.arange(len(y))
vendor = RandomForestClassifier(60, min_samples_leaf=3, random_state=0).fit(X[:1500], y[:1500])
table = pd.Series(vendor.predict(X), index=ids, name="decision")  # what was decided, by id

# %%
# A new model of our own, which keeps the table's decision unless another class is likelier by a margin.
ours = HistGradientBoostingClassifier(random_state=0)
train, later = slice(1500, 6000), slice(6000, 9000)
model = LowChurnClassifier(ours, max_churn=0.03, strategies="sticky", random_state=0)
model.fit(X[train], y[train], base_proba=table.loc[ids[train]].to_numpy())
print(model.selection_)

# %%
# ``predict(X, previous=)`` takes the decisions that the rows have now. Replacing the old system without a budget
# changes one row in eight.
before = table.loc[ids[later]].to_numpy()
switched = HistGradientBoostingClassifier(random_state=0).fit(X[train], y[train]).predict(X[later])
found = {
    "our model, no budget": flips(y[later], before, switched),
    "our model, budget 3 %": flips(y[later], before, model.predict(X[later], previous=before)),
}
figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
for kind, sign, color in (("fixed", 1, "#3b8ea5"), ("broken", -1, "#c9593f")):
    bars = axes.barh(
        list(found), [sign * 100 * getattr(f, kind) / f.n for f in found.values()], color=color, label=kind
    )
    axes.bar_label(bars, [f"{100 * getattr(f, kind) / f.n:.1f} %" for f in found.values()], fontsize=8, padding=2)
axes.axvline(0, color="gray", linewidth=0.8)
axes.set(xlabel="decisions that changed, %", title="Replacing a system that is known by its decisions")
axes.legend(fontsize=8)
axes.margins(x=0.15)
plt.show()
