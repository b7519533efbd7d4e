"""
LightGBM within a budget
========================

A LightGBM classifier is in production and more rows have come in. A plain retrain is more accurate and changes many
decisions. The same retrain with a budget of 2 % keeps most of the gain.
"""

# %%
# The model in production was trained on 2,000 rows; 6,000 more have come in.
import matplotlib.pyplot as plt
import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification

from lowchurn import LowChurnClassifier
from lowchurn.metrics import flips

X, y = make_classification(16_000, 20, n_informative=10, flip_y=0.1, class_sep=0.8, random_state=0)
settings = {"n_estimators": 60, "num_leaves": 15, "verbose": -1, "n_jobs": 1}
base = LGBMClassifier(**settings, random_state=0).fit(X[:2000], y[:2000])
plain = LGBMClassifier(**settings, random_state=1).fit(X[:8000], y[:8000])

# %%
# One fit chooses among sticky decisions, the dial, blends and distillation. ``dial`` moves to other budgets without
# training.
model = LowChurnClassifier(base=base, max_churn=0.02, random_state=0)
model.fit(X[:8000], y[:8000], new=np.arange(8000) >= 2000)
print(model.selection_)

# %%
# What changed on 8,000 rows that no model has seen:
versions = {"budget 1 %": model.dial(max_churn=0.01), "budget 2 %": model, "budget 5 %": model.dial(max_churn=0.05)}
versions["plain retrain"] = plain
answers, truth = base.predict(X[8000:]), y[8000:]
found = {name: flips(truth, answers, one.predict(X[8000:])) for name, one in versions.items()}

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
fixed, broken = ([100 * getattr(f, kind) / f.n for f in found.values()] for kind in ("fixed", "broken"))
axes.barh(list(found), fixed, color="#3b8ea5", label="fixed: wrong before, right now")
axes.barh(list(found), [-share for share in broken], color="#c9593f", label="broken: right before, wrong now")
axes.axvline(0, color="gray", linewidth=0.8)
axes.set(xlabel="decisions that changed, %", title="Changed decisions against the model in production")
axes.legend(loc="upper right", fontsize=8)
axes.invert_yaxis()
plt.show()
