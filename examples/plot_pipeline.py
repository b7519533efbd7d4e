"""
A scikit-learn pipeline with missing values
===========================================

The base may be a whole pipeline. Preprocessing is fitted once, and missing values go to the imputer as they do in
production. A certificate states that the budget holds on new rows.
"""

# %%
# Columns of numbers and words, some of them missing.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lowchurn import LowChurnClassifier

rng = np.random.default_rng(1)
n = 12_000
X = pd.DataFrame({"age": rng.normal(45, 12, n), "visits": rng.poisson(3.0, n), "plan": rng.choice(["a", "b", "c"], n)})
lead = 0.05 * (X.age - 45) + 0.5 * (X.visits - 3) + 0.8 * (X.plan == "c") - 0.2
y = (lead + rng.logistic(size=n) > 0).astype(int)
X.loc[rng.random(n) < 0.1, "age"] = np.nan

numbers = make_pipeline(SimpleImputer(), StandardScaler())
columns = make_column_transformer((numbers, ["age", "visits"]), (OneHotEncoder(), ["plan"]))
base = make_pipeline(columns, LogisticRegression()).fit(X[:80], y[:80])

# %%
# With ``traffic``, recent rows without labels, the margin is set and certified there, and all rows with labels are
# trained on.
model = LowChurnClassifier(base=base, max_churn=0.03, confidence=0.95, random_state=0)
model.fit(X[:4000], y[:4000], traffic=X[4000:8000])
print(model.certificate_)

# %%
# How far the budget reaches: churn and accuracy on 4,000 other rows, at budgets that need no further training.
later, truth = X[8000:], y[8000:]
before = base.predict(later)
budgets = np.array([0.005, 0.01, 0.02, 0.03, 0.05])
served = [model.dial(max_churn=budget) for budget in budgets]
churn = [100 * (one.predict(later) != before).mean() for one in served]
accuracy = [100 * one.score(later, truth) for one in served]
certified = ["certified" if one.certificate_.certified else "not certified" for one in served]

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(100 * budgets, churn, "o-", color="#3b8ea5")
left.plot([0, 5], [0, 5], "--", color="gray", linewidth=1)
left.set(xlabel="budget, %", ylabel="changed on new rows, %", title="Churn stays below the budget")
right.plot(100 * budgets, accuracy, "o-", color="#3b8ea5", label="within the budget")
right.axhline(100 * base.score(later, truth), color="gray", linewidth=1, label="the base")
right.set(xlabel="budget, %", ylabel="accuracy, %", title="Accuracy grows with it")
right.legend(fontsize=8)
plt.show()
print(dict(zip(budgets.tolist(), certified, strict=True)))
