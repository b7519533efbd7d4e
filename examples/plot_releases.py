"""
A chain of releases
===================

Each release is the base of the next one. Over four releases plain retraining changes an eighth of the rows at some
time, and half of these back again. With a budget of 2 % per release a twentieth changes, hardly any back, and the
accuracy follows a release later.
"""

# %%
# Every month 1,500 rows come in; the last 4,000 rows are decided by every release.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification

from lowchurn import LowChurnClassifier
from lowchurn.audit import history

X, y = make_classification(11_500, 14, n_informative=7, flip_y=0.1, class_sep=0.7, random_state=2)
rows, truth = X[-4000:], y[-4000:]
settings = {"n_estimators": 40, "num_leaves": 15, "verbose": -1, "n_jobs": 1}
kind = LGBMClassifier(**settings, random_state=0)
first = kind.fit(X[:1500], y[:1500])

plain, calm = {"v0": first.predict(rows)}, {"v0": first.predict(rows)}
base = first
for month in range(1, 5):
    end = 1500 * (month + 1)
    again = LGBMClassifier(**settings, random_state=month).fit(X[:end], y[:end])
    plain[f"v{month}"] = again.predict(rows)
    base = LowChurnClassifier(kind, base=base, max_churn=0.02, strategies="sticky", random_state=month)
    base.fit(X[:end], y[:end], new=np.arange(end) >= end - 1500)
    calm[f"v{month}"] = base.predict(rows)

# %%
# ``history`` compares all releases at once: every pair, decisions that change back, and rows that change most often.
labels = pd.DataFrame({"id": np.arange(len(truth)), "y": truth})
found = {
    name: history({release: labels.assign(prediction=made) for release, made in answers.items()}, label="y")
    for name, answers in {"plain retraining": plain, "budget 2 % per release": calm}.items()
}
print(found["budget 2 % per release"])

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for (name, one), color in zip(found.items(), ["#c9593f", "#3b8ea5"], strict=True):
    names = [release.name for release in one.releases]
    left.plot(names[1:], [100 * step.churn.value for step in one.steps], "o-", color=color, label=name)
    right.plot(names, [100 * release.accuracy.value for release in one.releases], "o-", color=color, label=name)
left.set(ylabel="decisions that changed, %", title="Against the release before")
left.set_ylim(bottom=0)
right.set(ylabel="accuracy, %", title="Accuracy on the same rows")
left.legend(fontsize=8)
plt.show()
for name, one in found.items():
    changed = 1 - one.by_changes[0] / sum(one.by_changes.values())
    print(f"{name}: {100 * changed:.1f} % of the rows changed at least once, {100 * one.back.value:.1f} % changed back")
