"""
An audit with slices
====================

Two tables of predictions, of any models, are compared on the same rows: what changed, where, and whether it may ship.
"""

# %%
# A candidate that is better on average and worse in one country.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lowchurn.audit import audit

rng = np.random.default_rng(0)
n = 20_000
old = pd.DataFrame(
    {"id": np.arange(n), "y": rng.integers(0, 2, n), "country": rng.choice(["DE", "ES", "FR", "IT", "PL"], n)}
)
old["score"] = np.clip(0.3 + 0.4 * old.y + rng.normal(0, 0.25, n), 0, 1)
better = np.where(old.country == "PL", -0.05, 0.03) * (2 * old.y - 1)
noise = rng.normal(0, 0.03, n)
new = old[["id"]].assign(score=np.clip(old.score + better + noise, 0, 1))

result = audit(old, new, label="y", by="country")
print(result)

# %%
# A gate judges limits on the bounds of intervals, for all rows and for each slice.
verdict = result.gate(max_churn=0.10, not_worse_than=0.0, slices={"country": {"not_worse_than": 0.01}})
print(verdict)

# %%
# The change in accuracy of every slice, with its interval:
slices = sorted(result.slices, key=lambda one: one.accuracy_change.value)
changes = [one.accuracy_change for one in slices]
points = [100 * change.value for change in changes]
spread = [[100 * (c.value - c.low) for c in changes], [100 * (c.high - c.value) for c in changes]]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.errorbar(points, [one.name for one in slices], xerr=spread, fmt="o", color="#3b8ea5", capsize=3)
axes.axvline(0, color="gray", linewidth=0.8)
axes.axvspan(-1, 0, color="#c9593f", alpha=0.12, label="tolerated by the gate")
axes.set(xlabel="change in accuracy, points", title=f"{verdict.outcome}: better on average, worse in PL")
axes.legend(fontsize=8)
plt.show()
