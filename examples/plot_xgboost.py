"""
XGBoost with early stopping, and a frozen class
===============================================

A base that stopped early is asked with its best number of rounds, and retrains train as many. Here decisions for one
class, ``"block"``, must not change at all, while the others may change within a budget.
"""

# %%
# Three classes; the base holds out a fifth of its rows for early stopping.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from xgboost import XGBClassifier

from lowchurn import LowChurnClassifier

names = np.array(["allow", "block", "review"])
X, codes = make_classification(12_000, 16, n_informative=8, n_classes=3, flip_y=0.1, class_sep=0.8, random_state=3)
base = XGBClassifier(n_estimators=300, max_depth=4, early_stopping_rounds=10, n_jobs=1, random_state=0)
base.fit(X[:1600], codes[:1600], eval_set=[(X[1600:2000], codes[1600:2000])], verbose=False)
print("rounds of the base:", base.best_iteration + 1)

# %%
# XGBoost decides in numbers: 1 is ``"block"``. ``max_churn={1: 0, None: 0.03}`` freezes that class and gives all rows
# a budget of 3 %.
model = LowChurnClassifier(base=base, max_churn={1: 0, None: 0.03}, random_state=0)
model.fit(X[:6000], codes[:6000], new=np.arange(6000) >= 2000)
print(model.selection_)

# %%
# On new rows no decision for the frozen class changes; the plain retrain changes every ninth of them.
rounds = base.best_iteration + 1
plain = XGBClassifier(n_estimators=rounds, max_depth=4, n_jobs=1, random_state=1).fit(X[:6000], codes[:6000])
before = base.predict(X[6000:])
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for place, (name, one, color) in enumerate([("plain retrain", plain, "#c9593f"), ("with budgets", model, "#3b8ea5")]):
    changed = one.predict(X[6000:]) != before
    shares = [100 * changed[before == code].mean() for code in range(3)]
    bars = axes.bar(
        np.arange(3) + 0.4 * place - 0.2,
        shares,
        0.38,
        color=color,
        label=f"{name}: {100 * changed.mean():.1f} % in all",
    )
    axes.bar_label(bars, fmt="%.1f", fontsize=8)
axes.set_xticks(range(3), [f"decided “{name}” before" for name in names])
axes.set(ylabel="decisions that changed, %", title="Changed decisions by what production decided")
axes.legend(fontsize=8)
axes.margins(y=0.15)
plt.show()
