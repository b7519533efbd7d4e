"""
Evaluation runs of a language model
===================================

Did the new prompt break items of the suite? Two runs are compared item by item: logs of lm-evaluation-harness,
Inspect and promptfoo, or tables as here.
"""

# %%
# A suite of 600 items in four tasks, each answered three times by both versions.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lowchurn.audit import compare

rng = np.random.default_rng(0)
items = pd.DataFrame(
    {"id": [f"item-{i:03}" for i in range(600)], "task": rng.choice(["code", "facts", "maths", "safety"], 600)}
)
skill = rng.beta(5, 2, 600)


def run(shift):
    tables = []
    for epoch in (1, 2, 3):
        right = rng.random(600) < np.clip(skill + shift, 0, 1)
        tables.append(items.assign(epoch=epoch, score=right.astype(int)))
    return pd.concat(tables, ignore_index=True)


old = run(0.0)
new = run(np.where(items.task == "maths", 0.12, np.where(items.task == "safety", -0.16, 0.0)))

# %%
# Repeats of an item are one group, so that intervals do not take them for independent.
result = compare(old, new)
print(result)

# %%
# The default gate of ``lowchurn compare`` fails only where a regression is shown. Here safety must not get worse.
verdict = result.gate(not_worse_than=0, slices={"task=safety": {"not_worse_than": 0}}, inconclusive="pass")
print(verdict)

# %%
# Broken and fixed outcomes by task:
slices = sorted(result.slices, key=lambda one: one.accuracy_change.value)
names = [one.name for one in slices]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
for kind, sign, color in (("fixed", 1, "#3b8ea5"), ("broken", -1, "#c9593f")):
    left.barh(names, [sign * 100 * getattr(one, kind).value for one in slices], color=color, label=kind)
left.axvline(0, color="gray", linewidth=0.8)
left.set(xlabel="outcomes that changed, %", title="Noise flips many items both ways")
left.legend(fontsize=8)
changes = [one.accuracy_change for one in slices]
spread = [[100 * (c.value - c.low) for c in changes], [100 * (c.high - c.value) for c in changes]]
right.errorbar([100 * c.value for c in changes], names, xerr=spread, fmt="o", color="#3b8ea5", capsize=3)
right.axvline(0, color="gray", linewidth=0.8)
right.set(xlabel="change in accuracy, points", title="The paired change is what counts")
plt.show()
