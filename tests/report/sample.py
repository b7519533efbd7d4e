"""Audits as release managers have them: many slices, long names, mostly unmoved rows, a dial of 51 positions."""

import dataclasses

import numpy as np
import pandas as pd

import lowchurn
from lowchurn.audit._provenance import Source

EDUCATION = ["Bachelors", "HS-grad", "Some-college", "Masters", "Assoc-acdm", "Prof-school", "Preschool"]
MARITAL = ["Married-civ-spouse", "Never-married", "Divorced", "Married-spouse-absent", "Widowed"]
WORK = ["Private", "Self-emp-not-inc", "Federal-gov", "Local-gov", "Without-pay"]
CLASSES = ["income of at most 50 thousand", "income-above-50-thousand"]
LONG = "s3://releases/credit-income/2025-06-14T09-30-00Z/predictions/candidate/part-00000-of-00001.snappy.parquet"
POSITIONS = 51
SERVED = 23  # counted from the new model


def tables(rows=3000, seed=3, labelled=True):
    """Predictions of two versions; 70 % of the scores lie near 0 and do not move."""
    rng = np.random.default_rng(seed)
    truth = rng.random(rows) < 0.24
    sure = rng.random(rows) < 0.7
    score = np.where(sure, rng.beta(0.6, 40, rows), rng.beta(2, 2, rows) * 0.6 + 0.35 * truth)
    moved = np.where(sure, score, np.clip(score + rng.normal(0.01, 0.06, rows), 0.0, 1.0))
    names = np.array(CLASSES)
    old = pd.DataFrame(
        {
            "application_number": [f"2025-{i:07d}" for i in range(rows)],
            "income": names[truth.astype(int)],
            "education": rng.choice(EDUCATION, rows),
            "marital-status": rng.choice(MARITAL, rows),
            "workclass": rng.choice(WORK, rows),
            "age": rng.integers(17, 90, rows),
            "score": np.clip(score, 0, 1),
        }
    )
    if not labelled:
        old = old.drop(columns="income")
    return old, pd.DataFrame({"application_number": old.application_number, "score": moved})


def audited(labelled=True, **options):
    old, new = tables(labelled=labelled)
    given = {"label": "income"} if labelled else {}
    found = lowchurn.audit.audit(
        old,
        new,
        id="application_number",
        by=["education", "marital-status"],
        features=["workclass", "age"],
        classes=CLASSES,
        **given | options,
    )
    found.sources = (LONG.replace("candidate", "production"), LONG)
    found.provenance = dataclasses.replace(
        found.provenance,
        old=Source("credit-income 3.1", found.sources[0], "9f" * 32, found.rows.old, "2025-06-13T21:04:55+00:00"),
        new=Source("credit-income 3.2-rc1", LONG, "0c" * 32, found.rows.new, "2025-06-14T09:30:00+00:00"),
        config="releases/credit-income/lowchurn.toml",
        from_config=("by", "features", "gate.max_churn"),
        settings=found.provenance.settings | {"gate.max_churn": 0.06},
    )
    found.command = f"lowchurn audit {found.sources[0]} {LONG} --id application_number --label income --html r.html"
    return found


def plain(rows=300, names=("approve", "refer to a person", "decline"), shifted=True):
    """Decisions alone: no labels, probabilities or slices."""
    at = np.arange(rows)
    old = pd.DataFrame({"id": at, "prediction": np.array(names)[at % 3]})
    return lowchurn.audit.audit(old, old.assign(prediction=np.array(names)[(at + (at % 41 == 0) * shifted) % 3]))


def record(strategy, setting, churn, gain, rows=4000, **more):
    """A row of the frontier: fixed less broken is the gain."""
    broken, fixed = (churn - gain) / 2, (churn + gain) / 2
    half = 1.96 * np.sqrt(churn * (1 - churn) / rows)
    return {
        "strategy": strategy,
        "setting": setting,
        "accuracy": 0.852 + gain,
        "churn": churn,
        "broken": broken,
        "fixed": fixed,
        "accuracy_interval": [0.852 + gain - 0.011, 0.852 + gain + 0.011],
        "churn_interval": [max(churn - half, 0.0), churn + half],
        "rows": float(rows),
        "dial": None,
        "reason": "",
    } | more


def retrained():
    """As ``lowchurn retrain --report`` writes it, with a dial of 51 positions."""
    served = f"soup(members=8, toward_base={SERVED / (POSITIONS - 1):.2f})"
    points = [
        record("cold", "", 0.081, 0.0091),
        record("distill", "lam=0.5, start=warm", 0.034, 0.0062),
        *(
            record("soup", f"members=8, toward_base={a:.2f}", 0.052 * (1 - a), 0.011 * (1 - a) * (1 + 0.7 * a), dial=a)
            for a in (k / (POSITIONS - 1) for k in range(POSITIONS))
        ),
        {"strategy": "mixup", "setting": "", "accuracy": None, "churn": None, "status": "skipped",
         "reason": "HistGradientBoostingClassifier cannot be trained on soft targets"},
    ]  # fmt: skip
    return {
        "parameters": {"max_churn": 0.03, "churn": "hard"},
        "selection": {"served": {served: 1.0}},
        "frontier": points,
    }


MARGINS = 41


def stuck(labelled=True):
    """As ``lowchurn retrain --report`` writes it: two sticky curves, a blend and distillation; or traffic alone."""

    def sticky(toward_base, k):
        margin = round(k / (MARGINS - 1), 3)
        churn = 0.061 * (1 - margin) ** 2
        found = {"members": 1, "margin": margin, "start": "cold", "average": "proba", "toward_base": toward_base}
        gain = (0.2 - 0.1 * toward_base) * churn * (2 - margin)
        return record("sticky", "", churn, gain, parameters=found, dial=margin, dial_parameter="margin", models=2)

    points = [record("cold", "", 0.061, 0.0115, models=1)]
    points += [sticky(share, k) for share in ((0.0, 0.4) if labelled else (0.0,)) for k in range(MARGINS)]
    if labelled:
        for k in range(51):
            found = {"members": 1, "lam": round(1 - k / 50, 2), "start": "cold"}
            churn = 0.061 * found["lam"]
            on_dial = {"parameters": found, "dial": k / 50, "dial_parameter": "lam", "models": 2}
            points.append(record("served-mix", "", churn, 0.16 * churn * (1.2 - 0.2 * found["lam"]), **on_dial))
        for lam in (0.2, 0.1, 0.5):
            found = {"lam": lam, "start": "cold"}
            points.append(record("distill", "", 0.05 * lam + 0.01, 0.006 * lam, parameters=found, models=1))
    else:
        unknown = dict.fromkeys(("accuracy", "broken", "fixed", "accuracy_interval"))
        points = [point | unknown for point in points]
    for point in points:
        for name in ("broken", "fixed") if labelled else ():
            point[f"{name}_interval"] = [0.7 * point[name], 1.4 * point[name] + 0.001]
    for point in points:
        point["setting"] = ", ".join(f"{name}={value}" for name, value in point.get("parameters", {}).items())
    served = next(p for p in points if p["strategy"] == "sticky" and p["churn"] <= 0.019)
    return {
        "parameters": {"max_churn": 0.02, "churn": "hard"},
        "selection": {"served": {f"sticky({served['setting']})": 1.0}, "rows": {} if labelled else {"traffic": 4000}},
        "frontier": points,
    }
