"""Torch networks: a scikit-learn classifier around the engine, and the learner that trains all candidates at once."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lowchurn._checks import check_number
from lowchurn._extras import importing
from lowchurn._model_files import Label, Refused, labels_from_plain, labels_to_plain, read_record, reading
from lowchurn._types import ArrayLike, Rows
from lowchurn.learners._learner import Job, Learner
from lowchurn.metrics import decide
from lowchurn.strategies import Strategy, one_hot

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from lowchurn.nets import Task

WHO = "NetworkClassifier"
# The paper's networks, and the parameter that is the size or the shape of a row.
KINDS = {"fcn": "inputs", "convnet": "shape", "transformer": "length", "resnet": "shape"}
EXAMPLES = "'fcn-100', 'convnet-4', 'transformer-1', 'resnet-50'"


class NetworkClassifier(ClassifierMixin, BaseEstimator):
    """A torch network with scikit-learn's contract, trained by the batched engine.

    Parameters
    ----------
    network : str, module or function
        One of the paper's networks by name ("fcn-1000", "convnet-4", "transformer-1", "resnet-50"), which is made to
        measure; or a module, or a function that makes one, giving logits of shape (rows, classes). A function is
        given itself, never by its name: names are what model files contain, and a file must not choose what runs.
    input_shape : tuple of int, optional
        Shape of one row where it is not a vector: X stays two-dimensional and is reshaped, (28, 28, 1) for an image.
    validation_fraction : float, default 0.1
        Share of the rows on whose loss training stops.
    epochs, patience, restore_best, batch_size, learning_rate, loss, device, precision
        As in :func:`lowchurn.nets.train`.
    random_state : int, RandomState or None
        Decides the start, the shuffles and the rows held out.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network.
    classes_, n_features_in_ : as everywhere in scikit-learn
    epochs_ : int
        Epochs trained.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from lowchurn.learners import NetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NetworkClassifier("fcn-64", random_state=0, device="cpu").fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    module_: Module
    epochs_: int

    def __init__(
        self,
        network: Any = "fcn-100",
        *,
        input_shape: tuple[int, ...] | None = None,
        validation_fraction: float = 0.1,
        epochs: int = 300,
        patience: int = 5,
        restore_best: bool = False,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        loss: str = "log",
        device: str = "auto",
        precision: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.network = network
        self.input_shape = input_shape
        self.validation_fraction = validation_fraction
        self.epochs = epochs
        self.patience = patience
        self.restore_best = restore_best
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.loss = loss
        self.device = device
        self.precision = precision
        self.random_state = random_state

    def fit(self, X: Rows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the network on labels."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{WHO}: y must have at least two classes, got 1 class.")
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        seed = int(check_random_state(self.random_state).randint(2**31))
        job = Job(one_hot(index, len(self.classes_)), sample_weight=weight, seed=seed, labels=index)
        model = TorchLearner(self, self.classes_).fit(X, job)
        self.module_, self.epochs_ = model.module_, model.epochs_
        return self

    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return the probabilities of the classes in the order of ``classes_``."""
        check_is_fitted(self)
        import torch

        X = validate_data(self, X, dtype=np.float32, reset=False)
        rows = torch.from_numpy(shaped(self, X))
        with torch.no_grad():
            parts = [torch.softmax(self.module_(part).double(), dim=-1) for part in rows.split(1024)]
        return np.asarray(torch.cat(parts).numpy())

    @classmethod
    def wrap(cls, module: Module, classes: ArrayLike, features: int, **parameters: Any) -> Self:
        """Return a network that was trained elsewhere as a fitted classifier, to serve as the base.

        Parameters
        ----------
        module : torch.nn.Module
            Gives logits of shape (rows, classes).
        classes : list
            The label of each output.
        features : int
            Columns of X.
        **parameters
            Of this class, such as ``input_shape``; ``network`` is the module.
        """
        return cls(module, **parameters)._fitted(module.eval(), np.asarray(classes), features, epochs=0)

    def _fitted(self, module: Module, classes: np.ndarray, features: int, epochs: int) -> Self:
        self.module_, self.classes_, self.n_features_in_, self.epochs_ = module, classes, features, epochs
        return self

    def predict(self, X: Rows) -> np.ndarray:
        """Return the likeliest class of each row."""
        decided = decide(self.predict_proba(X))
        return np.asarray(self.classes_[decided])


def shaped(model: NetworkClassifier, X: np.ndarray) -> np.ndarray:
    """Return rows as the network takes them: reshaped, and whole numbers for token ids."""
    rows = np.ascontiguousarray(X, dtype=np.float32)
    if model.input_shape is not None:
        if np.prod(model.input_shape) != rows.shape[1]:
            raise ValueError(
                f"{WHO}: input_shape {model.input_shape} needs {np.prod(model.input_shape)} features, "
                f"got {rows.shape[1]}."
            )
        rows = rows.reshape(-1, *model.input_shape)
    name = model.network if isinstance(model.network, str) else type(model.network).__name__.lower()
    return rows.astype(np.int64) if name.partition("-")[0] == "transformer" else rows


def make_network(model: NetworkClassifier, features: int, classes: int) -> Any:
    """Return the module to train, or the function that makes it; one of the paper's is made to measure."""
    with importing(WHO, "torch"):
        import torch  # noqa: F401
    from lowchurn.nets import networks

    if not isinstance(model.network, str):
        return model.network
    if ":" in model.network:
        raise ValueError(
            f"{WHO}: network must not name code, got {model.network!r}. Import it and give the function itself."
        )
    kind, _, size = model.network.partition("-")
    if kind not in KINDS or not size.isdigit():
        raise ValueError(f"{WHO}: network must be a module or a name such as {EXAMPLES}, got {model.network!r}.")
    image, shape = KINDS[kind] == "shape", model.input_shape
    if image and (shape is None or len(shape) != 3):
        raise ValueError(f"{WHO}: {model.network} takes images: give input_shape=(height, width, channels).")
    row = {KINDS[kind]: shape if image else features}
    make = functools.partial(getattr(networks, kind), int(size), classes=classes, **row)
    _check_memory(model.network, make)
    return make()


def _check_memory(name: str, make: Callable[[], Any]) -> None:
    """Refuse a network that does not fit into memory before the system ends the process."""
    import torch

    try:
        with torch.device("meta"):  # shapes without memory
            weights = sum(p.numel() for p in make().parameters())
    except (RuntimeError, TypeError, OverflowError):  # more than torch can count
        weights = sys.maxsize
    needed = 16 * weights  # in single precision: the weights, their gradients and two moments
    if hasattr(os, "sysconf") and needed > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise ValueError(
            f"{WHO}: network {name!r} must fit into memory: training takes {needed / 2**30:.3g} GiB, "
            f"the machine has {memory / 2**30:.3g}. Choose a smaller one."
        )


def make_module(model: NetworkClassifier, features: int, classes: int) -> Any:
    """Return a module of one's own kind, whose weights may be changed."""
    network = make_network(model, features, classes)
    if not is_network(network):
        return network()
    return network if isinstance(model.network, str) else copy.deepcopy(network)


def same_shapes(one: Iterable[tuple[str, Tensor]], other: Iterable[tuple[str, Tensor]]) -> bool:
    """Whether two sets of weights have the same names and shapes."""
    shapes = [{name: tuple(value.shape) for name, value in named} for named in (one, other)]
    return shapes[0] == shapes[1]


# Parameters that go on to the engine as they are.
TRAINING = ("epochs", "patience", "restore_best", "batch_size", "learning_rate", "loss", "device", "precision")
OTHER_LAYERS = "the base's network has other layers, so its weights do not fit."


class TorchLearner(Learner):
    """Trains the candidates of a :class:`NetworkClassifier` together, as one stack."""

    name = "torch"
    estimator: NetworkClassifier

    @classmethod
    def handles(cls, estimator: object) -> bool:
        return isinstance(estimator, NetworkClassifier)

    def fit(self, X: Rows, job: Job, base: Any = None) -> NetworkClassifier:
        (model,) = self.fit_many(X, [job], base)
        if isinstance(model, Exception):
            raise model
        return model

    def fit_many(
        self, X: Rows, jobs: Sequence[Job], base: Any = None, n_jobs: int | None = None
    ) -> list[NetworkClassifier | Exception]:
        """Train all jobs at once on one device; ``n_jobs`` has no effect here."""
        who = self.estimator
        X = np.asarray(X, dtype=np.float32)
        network = make_network(who, X.shape[1], len(self.classes))
        from lowchurn.nets import train

        start = None
        if any(job.base_share for job in jobs):
            start = {name: value.detach() for name, value in base.module_.state_dict().items()}
        pool, tasks = [X], []
        for job in jobs:
            tasks.append(self._task(job, start, sum(map(len, pool))))
            if job.held_out is not None:
                pool.append(np.asarray(job.held_out[0], dtype=np.float32))
        trained = train(
            network,
            shaped(who, np.concatenate(pool) if len(pool) > 1 else X),
            tasks,
            progress=False,
            **{name: getattr(who, name) for name in TRAINING},
        )
        return [
            clone(who)._fitted(trained.module(k), self.classes, X.shape[1], int(trained.epochs[k]))
            if trained.status[k] == "finished"
            else RuntimeError(f"{WHO}: training {trained.status[k]}")
            for k in range(len(jobs))
        ]

    @property
    def stops_on_rows(self) -> bool:
        return True

    def _task(self, job: Job, start: dict[str, Tensor] | None, pool: int) -> Task:
        """Return the task of a job, whose own held-out rows begin at a place in the pool."""
        from lowchurn.nets import Task
        from lowchurn.nets._tasks import by_strategy

        if job.held_out is None:
            rows, held_out = self._split(job.true_classes, job)
            known = job.stopping_targets[held_out]
        else:
            rows, known = np.arange(len(job.targets)), job.held_out[1]
            held_out = pool + np.arange(len(known))
        weights, pull = (None if values is None else values[rows] for values in (job.sample_weight, job.pull))
        seed = 0 if job.seed is None else job.seed
        return by_strategy(
            job.strategy, Task(rows, job.targets[rows], held_out, known, seed, start=start, weights=weights, pull=pull)
        )

    def _split(self, labels: np.ndarray, job: Job) -> tuple[np.ndarray, np.ndarray]:
        """Return rows to train on and rows to stop on, the same for jobs of one seed."""
        fraction = check_number(WHO, "validation_fraction", self.estimator.validation_fraction, 0, 1, open_low=True,
                                open_high=True)  # fmt: skip
        if len(labels) < 10:
            raise ValueError(
                f"{WHO}: at least 10 rows are needed to hold some out for early stopping, got {len(labels)}."
            )
        counts = np.bincount(labels)
        many = counts[counts > 0].min() > 1 and int(fraction * len(labels)) >= len(self.classes)
        rows, held_out = train_test_split(
            np.arange(len(labels)), test_size=fraction, random_state=job.seed, stratify=labels if many else None
        )
        return rows, held_out

    def cannot(self, strategy: Strategy, base: Any = None) -> str | None:
        return self.cannot_start(strategy.base_share, base) if strategy.base_share else None

    def cannot_start(self, base_share: float, base: Any) -> str | None:
        if not isinstance(base, NetworkClassifier) or not hasattr(base, "module_"):
            return "a network can only start from the weights of a base that is a NetworkClassifier, too."
        if list(base.classes_) != list(self.classes):
            return "the base has other classes, so its weights do not fit."
        module = make_module(self.estimator, base.n_features_in_, len(self.classes))
        fits = same_shapes(module.named_parameters(), base.module_.named_parameters())
        return None if fits else OTHER_LAYERS

    def cannot_average(self, base: Any) -> str | None:
        if reason := self.cannot_start(1.0, base):
            return reason
        import torch

        module, state = make_module(self.estimator, base.n_features_in_, len(self.classes)), base.module_.state_dict()
        if not same_shapes(module.state_dict().items(), state.items()):
            return OTHER_LAYERS
        module.load_state_dict(state)
        rows = np.random.default_rng(0).uniform(size=(4, base.n_features_in_))
        inputs = torch.from_numpy(shaped(self.estimator, rows)).to("cpu")
        with torch.no_grad():
            if not torch.allclose(module.cpu().eval()(inputs), base.module_(inputs), atol=1e-5, equal_nan=True):
                return "the base's network makes something else of the same weights."
        return None

    def needs_rows(self, model: Any) -> bool:
        from lowchurn.nets._averages import running_norms

        return bool(running_norms(model.module_))

    def average(self, models: Sequence[Any], shares: Sequence[float], X: Rows) -> NetworkClassifier:
        """Return a network with weights in shares; batch normalisation gets its statistics anew from the rows ``X``."""
        import torch

        from lowchurn.nets._averages import average_states, renew_statistics

        first, module = models[0], copy.deepcopy(models[0].module_)
        module.load_state_dict(average_states([model.module_.state_dict() for model in models], shares))
        made = clone(self.estimator)._fitted(module.eval(), self.classes, first.n_features_in_, first.epochs_)
        if self.needs_rows(made) and not any(share == 1 for share in shares):
            rows = torch.from_numpy(shaped(self.estimator, np.asarray(X, dtype=np.float32)))
            renew_statistics(module, rows, self.estimator.batch_size)
            module.eval()
        return made

    @classmethod
    def saves(cls, model: Any) -> bool:
        return isinstance(model, NetworkClassifier)

    @classmethod
    def save(cls, model: Any) -> dict[str, bytes]:
        """Weights as safetensors, everything else as JSON; a module of one's own is named, not pickled."""
        from safetensors.torch import save

        parameters = model.get_params(deep=False)
        parameters["network"] = network_name(model.network)
        if not isinstance(model.network, str):
            _check_made_again(model)
        if not isinstance(parameters["random_state"], int):
            parameters["random_state"] = None
        about = {
            "parameters": parameters,
            **labels_to_plain(model.classes_),
            "features": int(model.n_features_in_),
            "epochs": int(model.epochs_),
        }
        weights = {name: value.contiguous() for name, value in model.module_.state_dict().items()}
        return {"network.safetensors": save(weights), "network.json": json.dumps(about).encode()}

    @classmethod
    def load(cls, files: dict[str, bytes], trusted: Sequence[str] = ()) -> Any:
        from safetensors.torch import load

        about = read_record("the part 'network.json'", files["network.json"], NetworkRecord)
        parameters: dict[str, Any] = dict(about.parameters)
        if parameters.get("input_shape") is not None:
            parameters["input_shape"] = tuple(parameters["input_shape"])
        model = NetworkClassifier(**{**parameters, "network": name_to_network(parameters["network"], trusted)})
        classes = labels_from_plain("the network", about.classes, about.dtype or about.classes_dtype)
        module = _module_with(model, load(files["network.safetensors"]), about.features, len(classes))
        model._fitted(module.eval(), classes, about.features, about.epochs)
        if model.predict_proba(np.zeros((1, about.features))).shape != (1, len(model.classes_)):
            raise Refused("load: the network must give one number per class.")
        return model


@dataclass(frozen=True)
class NetworkRecord:
    """What a model file contains about a network, beside its weights."""

    parameters: dict[str, bool | int | float | str | list[int] | None]
    classes: list[Label]
    features: int
    epochs: int
    dtype: str = ""
    classes_dtype: str = ""  # its name in files of format 1


def _module_with(model: NetworkClassifier, weights: dict[str, Tensor], features: int, classes: int) -> Module:
    """Return the network with these weights. One that they do not fit is refused before memory is taken for it."""
    import torch

    if isinstance(model.network, str):
        with torch.device("meta"):
            plan = make_network(model, features, classes)
        if not same_shapes(plan.state_dict().items(), weights.items()):
            raise Refused(f"load: the weights do not fit the network {model.network!r} of {features} features.")
    module: Module = make_module(model, features, classes)
    module.load_state_dict(weights)
    return module


def is_network(value: object) -> TypeGuard[Module]:
    """Whether this is a torch module; torch is not imported."""
    return not isinstance(value, type) and hasattr(value, "named_parameters") and hasattr(value, "forward")


def network_name(network: Any) -> str:
    """Return a network as a string: a module of one's own by where its class is imported from."""
    if isinstance(network, str):
        return network
    maker = type(network) if is_network(network) else network
    module, name = getattr(maker, "__module__", None), getattr(maker, "__qualname__", "")
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not maker:
        raise ValueError(
            f"save: the network must come from a function or class that can be imported, got {maker!r}. "
            "Define it at the top of a module."
        )
    return f"{module}:{name}"


def _check_made_again(model: NetworkClassifier) -> None:
    """Refuse to write weights of a network that its own class or function would not make again."""
    import torch

    maker = type(model.network) if is_network(model.network) else model.network
    try:
        with torch.random.fork_rng(devices=[]):
            same = same_shapes(maker().named_parameters(), model.module_.named_parameters())
    except Exception:
        same = False
    if not same:
        raise ValueError(
            f"save: {network_name(model.network)} must make the network again when it is called without arguments, "
            "and it does not. Give a function or class without arguments that does."
        )


def name_to_network(network: Any, trusted: Sequence[str]) -> Any:
    """Return the network that a model file names: one of the paper's by its name, code only where it is trusted."""
    if not isinstance(network, str) or ":" not in network:
        return network
    if network not in trusted:
        raise Refused(
            f"load: the file names code, {network!r}, that makes a network. "
            f"Where you trust it, load with trusted=[{network!r}]."
        )
    with reading(f"the network {network!r}"):
        module, _, attribute = network.partition(":")
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    return found
