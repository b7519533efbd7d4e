"""The same seed gives the same bits: in another process, with other numbers of jobs and threads."""

import ast
import hashlib
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytestmark = pytest.mark.stress

LEARNERS = {
    "logistic": "make_pipeline(StandardScaler(), LogisticRegression())",
    "forest": "RandomForestClassifier(10)",  # with threads of its own: see test_a_forests_own_threads
    "trees": "HistGradientBoostingClassifier(max_iter=10, early_stopping=False)",
    "lightgbm": "lightgbm.LGBMClassifier(n_estimators=10, n_jobs=JOBS, deterministic=True, force_row_wise=True,"
    " verbose=-1)",
    "xgboost": "xgboost.XGBClassifier(n_estimators=10, n_jobs=JOBS)",
    "catboost": "catboost.CatBoostClassifier(iterations=10, thread_count=JOBS, verbose=False,"
    " allow_writing_files=False)",
    "network": "make_pipeline(StandardScaler(), NetworkClassifier('fcn-16', epochs=5, device='cpu'))",
}
PROGRAM = """
import hashlib, warnings
warnings.simplefilter("ignore")
import catboost, lightgbm, xgboost
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from lowchurn import LowChurnClassifier
from lowchurn.learners import NetworkClassifier
JOBS = {jobs}
X, y = make_classification(600, 8, n_informative=5, n_classes=3, random_state=0)
base = LogisticRegression(max_iter=1000).fit(X[:200], y[:200])
model = LowChurnClassifier({learner}, base=base, max_churn=0.1, strategies={strategies}, random_state=3, n_jobs={jobs})
model.fit(X[:500], y[:500])
measured = [{{k: v for k, v in row.items() if k != "seconds"}} for row in model.frontier_.records()]
SHOWN = {shown!r}
if SHOWN:
    print(model.predict_proba(X).tolist())
    raise SystemExit
print(hashlib.sha256(model.predict_proba(X).tobytes() + repr(measured).encode()).hexdigest())
"""


def in_a_process(learner, strategies, jobs, threads, shown=False):
    """What the program prints about a learner in a process of its own."""
    program = textwrap.dedent(PROGRAM).format(learner=learner, strategies=strategies, jobs=jobs, shown=shown)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    environment |= {"OPENBLAS_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(jobs * 7 + threads)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bits(learner, strategies, jobs, threads):
    """A digest of the probabilities and of everything that was measured."""
    digest = in_a_process(LEARNERS[learner], strategies, jobs, threads)
    assert len(digest) == hashlib.sha256().digest_size * 2
    return digest


@pytest.mark.parametrize("strategies", ["None", "'auto'"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_same_bits_in_every_process(learner, strategies):
    first = bits(learner, strategies, jobs=1, threads=1)
    assert bits(learner, strategies, jobs=1, threads=1) == first
    assert bits(learner, strategies, jobs=2, threads=2) == first


def test_a_forests_own_threads():
    """scikit-learn adds the trees' probabilities in the order in which its threads end: equal but for rounding."""
    forest = "RandomForestClassifier(10, n_jobs={})"
    alone, threaded = (
        np.array(ast.literal_eval(in_a_process(forest.format(own), "None", 1, own, shown=True))) for own in (1, 2)
    )
    np.testing.assert_allclose(threaded, alone, rtol=0, atol=1e-12)
