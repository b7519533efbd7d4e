"""
A torch network and its dial
============================

Retrain a network several times from the weights of the base, average the weights and move from there toward the base.
Every position is one network of the same size, made by an addition and not by training.
"""

# %%
# Handwritten digits of a noisy camera; the base has seen 600 of them.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

from lowchurn import LowChurnClassifier
from lowchurn.learners import NetworkClassifier
from lowchurn.metrics import churn

X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
X = X / 16 + np.random.default_rng(0).normal(scale=0.25, size=X.shape)
base = NetworkClassifier("fcn-32", random_state=0, device="cpu").fit(X[:600], y[:600])
plain = NetworkClassifier("fcn-32", random_state=1, device="cpu").fit(X[:1100], y[:1100])

# %%
# ``strategies="dial"`` trains a plain retrain, and eight retrains that start from the base, all at once.
model = LowChurnClassifier(base=base, max_churn=0.03, strategies="dial", random_state=0)
model.fit(X[:1100], y[:1100], new=np.arange(1100) >= 600)
print(model.selection_)

# %%
# Accuracy and churn along the dial, on digits that no network has seen:
later, truth = X[1100:], y[1100:]
before = base.predict(later)
budgets = [0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2]
served = [model.dial(max_churn=budget).predict(later) for budget in budgets]
along = [(100 * churn(before, one), 100 * (one == truth).mean()) for one in served]
ends = {"the base": before, "plain retrain": plain.predict(later)}

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(
    *zip((0, 100 * (before == truth).mean()), *along, strict=True),
    "o-",
    color="#3b8ea5",
    label="the dial: one training session",
)
for (name, one), color in zip(ends.items(), ["black", "#c9593f"], strict=True):
    axes.plot(100 * churn(before, one), 100 * (one == truth).mean(), "s", color=color, label=name)
axes.set(xlabel="decisions that changed, %", ylabel="accuracy, %", title="One fit, every budget")
axes.legend(fontsize=8)
plt.show()
