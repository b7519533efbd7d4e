"""Networks as learners: scikit-learn's contract, soft targets, all candidates at once, files."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator._archive import model_from_files, model_to_files
from lowchurn.estimator._training import find_estimator
from lowchurn.learners import Job, NetworkClassifier, learner_for
from lowchurn.learners._torch import TorchLearner
from lowchurn.strategies import Anchor, CoDistill, ColdStart, Distill, Mixup, ShrinkPerturb, WarmStart

X, Y = load_digits(return_X_y=True)
X = X / 16.0
LABELS = np.array([f"digit {k}" for k in Y])
SMALL = NetworkClassifier("fcn-48", random_state=0, device="cpu")


class Own(torch.nn.Module):
    """A user's own module."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 24), torch.nn.ReLU(), torch.nn.Linear(24, 10))

    def forward(self, x):
        return self.layers(x)


@parametrize_with_checks(
    [NetworkClassifier("fcn-16", random_state=0, device="cpu", epochs=12, learning_rate=0.05)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "a row twice is in two batches, a row of weight two in one"
    },
)
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def test_soft_targets_reach_the_closed_form():
    rng = np.random.default_rng(0)
    category = rng.integers(3, size=600)
    targets = rng.dirichlet([1, 2, 3], size=600)
    network = NetworkClassifier(
        "fcn-32", epochs=150, patience=150, learning_rate=0.01, device="cpu", restore_best=False
    )
    labels = np.array([(rng.uniform() > t.cumsum()).sum() for t in targets])
    job = Job(targets, Distill(), seed=1, labels=labels)
    model = learner_for(network, np.array([1, 2, 3])).fit(np.eye(3)[category], job)
    best = np.stack([targets[category == k].mean(axis=0) for k in range(3)])
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), best, atol=0.03)


def test_all_candidates_are_trained_at_once_and_as_if_alone():
    old = learner_for(SMALL, np.arange(10)).fit(X[:300], Job(np.eye(10)[Y[:300]], ColdStart(), seed=0, labels=Y[:300]))
    onehot, proba = np.eye(10)[Y[:600]], old.predict_proba(X[:600])
    strategies = [
        ColdStart(),
        WarmStart(),
        ShrinkPerturb(0.5),
        Mixup(0.4),
        CoDistill(0.5),
        Anchor(),
        Distill(0.3, start="warm"),
    ]
    learner = learner_for(SMALL, np.arange(10))
    assert isinstance(learner, TorchLearner)
    assert not any(learner.cannot(s, old) for s in strategies)
    jobs = [Job(s.targets(onehot, proba), s, seed=3, labels=Y[:600]) for s in strategies]
    together = learner.fit_many(X[:600], jobs, old)
    for job, model in zip(jobs, together, strict=True):
        alone = learner.fit(X[:600], job, old)
        np.testing.assert_allclose(alone.predict_proba(X), model.predict_proba(X), atol=1e-6)
    churns = {
        s.name: (m.predict(X[600:]) != old.predict(X[600:])).mean() for s, m in zip(strategies, together, strict=True)
    }
    assert churns["distill"] < churns["cold"]


@pytest.mark.parametrize("budget", [0.02, 0.05])
def test_low_churn_classifier_on_a_network(budget):
    base = NetworkClassifier("fcn-48", random_state=0, device="cpu").fit(X[:500], LABELS[:500])
    model = LowChurnClassifier(SMALL, base=base, max_churn=budget, random_state=0).fit(X[:1000], LABELS[:1000])
    assert model.selection_.churn <= budget
    assert (model.predict(X[1000:]) != base.predict(X[1000:])).mean() < budget + 0.03
    assert {row.status for row in model.frontier_} <= {"trained"}


def test_pipelines_and_modules_of_ones_own(tmp_path):
    base = make_pipeline(StandardScaler(), NetworkClassifier("fcn-32", random_state=0, device="cpu"))
    base.fit(X[:500], LABELS[:500])
    model = LowChurnClassifier(base=base, max_churn=0.05, random_state=1).fit(X[:900], LABELS[:900])
    model.save(tmp_path / "next.lowchurn")
    again = lowchurn.load(tmp_path / "next.lowchurn")
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    assert isinstance(find_estimator(Own(), None, False, None), NetworkClassifier)
    short = NetworkClassifier(Own(), epochs=3, device="cpu")
    own = LowChurnClassifier(short, base=base, max_churn=0.3, strategies=[Distill(0.5)], random_state=1)
    own.fit(X[:900], LABELS[:900])
    own.save(tmp_path / "own.lowchurn")
    name = f"{__name__}:Own"
    with pytest.raises(ValueError, match="names code, .* load with trusted="):
        lowchurn.load(tmp_path / "own.lowchurn")
    again = lowchurn.load(tmp_path / "own.lowchurn", trusted=[name])
    assert (again.predict_proba(X) == own.predict_proba(X)).all()


def test_a_network_from_elsewhere_is_wrapped():
    module = Own()
    base = NetworkClassifier.wrap(module, classes=np.arange(10), features=64)
    expected = torch.softmax(module(torch.tensor(X[:5], dtype=torch.float32)).double(), -1).detach().numpy()
    np.testing.assert_allclose(base.predict_proba(X[:5]), expected, atol=1e-7)
    warm = learner_for(NetworkClassifier(Own(), device="cpu", epochs=1), np.arange(10))
    assert not warm.cannot(WarmStart(), base)


def test_images_and_files():
    images = NetworkClassifier("convnet-1", input_shape=(16, 16, 1), epochs=2, random_state=0, device="cpu")
    grown = np.kron(X[:120].reshape(-1, 8, 8), np.ones((2, 2))).reshape(120, -1)
    model = images.fit(grown, Y[:120])
    expected = model.predict_proba(grown)
    again = model_from_files(*model_to_files(model))
    assert (again.predict_proba(grown) == expected).all()
    assert (pickle.loads(pickle.dumps(model)).predict_proba(grown) == expected).all()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="network must be a module or a name"):
        NetworkClassifier("rnn-3", device="cpu").fit(X, Y)
    with pytest.raises(ValueError, match="give input_shape"):
        NetworkClassifier("convnet-1", device="cpu").fit(X, Y)
    with pytest.raises(ValueError, match="needs 196 features, got 64"):
        NetworkClassifier("convnet-1", input_shape=(14, 14, 1), device="cpu").fit(X, Y)
    with pytest.raises(ValueError, match="validation_fraction must be in"):
        NetworkClassifier(validation_fraction=1.5, device="cpu").fit(X, Y)
    learner = learner_for(SMALL, np.arange(10))
    assert "NetworkClassifier, too" in learner.cannot(WarmStart(), object())
    other = NetworkClassifier.wrap(Own(), np.arange(10), 64)
    assert "other layers" in learner.cannot(WarmStart(), other)
