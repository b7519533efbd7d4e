"""How fast the engine trains, beside the ways one would train the same networks otherwise, in one run.

    make bench-engine

Same work for all: fcn-1000, 20 inputs, 2 classes, 2,000 rows, batches of 32. Times are milliseconds per model and
epoch, the best of three. On a GPU also convnet-4 on 28 x 28 x 1 and transformer-1 at length 200; ``--precision`` shows
what bfloat16 changes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import torch

from lowchurn.nets import Task, train
from lowchurn.nets.networks import convnet, fcn, transformer

ROWS, HELD_OUT = 2000, 100


def world(kind, rows=ROWS + HELD_OUT, seed=0):
    """A pool of rows and labels for one kind of network."""
    rng = np.random.default_rng(seed)
    n = rows
    if kind == "fcn":
        X = rng.normal(size=(n, 20)).astype("float32")
        return X, (X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=n) > 0).astype(int), 2
    if kind == "convnet":
        y = rng.integers(10, size=n)
        shapes = np.random.default_rng(99).normal(size=(10, 28, 28, 1))  # the same for every seed
        return (shapes[y] + 2.5 * rng.normal(size=(n, 28, 28, 1))).astype("float32"), y, 10
    X = rng.integers(20000, size=(n, 200))
    return X, (X[:, :100].mean(axis=1) > X[:, 100:].mean(axis=1)).astype(int), 2


NETWORKS = {
    "fcn": lambda: fcn(1000, inputs=20, classes=2),
    "convnet": lambda: convnet(4),
    "transformer": lambda: transformer(1),
}


def tasks_for(y, classes, models):
    onehot = np.eye(classes)[y]
    rows, held_out = np.arange(ROWS), np.arange(ROWS, ROWS + HELD_OUT)
    return [Task(rows, onehot[rows], held_out, onehot[held_out], seed=k) for k in range(models)]


def time_engine(kind, device, models, epochs, **options):
    """A whole call of train(): starts, shuffles, validation and all."""
    X, y, classes = world(kind)
    network = NETWORKS[kind]()
    train(network, X, tasks_for(y, classes, min(models, 8)), epochs=1, device=device, **options)  # compile
    start = time.perf_counter()
    trained = train(network, X, tasks_for(y, classes, models), epochs=epochs, patience=epochs, device=device, **options)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    assert set(trained.status) == {"finished"}, set(trained.status)
    return 1000 * seconds / (models * epochs)


def time_torch_loop(kind, device, steps=63):
    """One model, the ordinary way: a module, autograd, torch.optim.Adam."""
    X, y, _ = world(kind)
    network = NETWORKS[kind]().to(device)
    optimizer = torch.optim.Adam(network.parameters(), eps=1e-7)
    x, t = torch.as_tensor(X, device=device), torch.as_tensor(y, device=device)
    loss_of = torch.nn.CrossEntropyLoss()

    def run(count):
        order = torch.randperm(ROWS, device=device)
        for step in range(count):
            part = order[32 * step : 32 * (step + 1)]
            optimizer.zero_grad()
            loss_of(network(x[part]), t[part]).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    run(8)
    start = time.perf_counter()
    run(steps)
    return 1000 * (time.perf_counter() - start) * 63 / steps


def time_mlp_classifier(epochs=3):
    from sklearn.neural_network import MLPClassifier

    X, y, _ = world("fcn")
    network = MLPClassifier((1000,), batch_size=32, max_iter=epochs, n_iter_no_change=epochs + 1, alpha=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        network.fit(X[:ROWS], y[:ROWS])
    return 1000 * (time.perf_counter() - start) / epochs


def time_keras(epochs):
    """Keras' ``model.fit`` as in the paper: each training makes, compiles and fits a model of its own.

    Gives the time of an epoch in such a training, and that of an epoch once the model has been compiled.
    """
    import keras

    # A process has one backend, so this runs in one of its own: see keras_rows.

    X, y, classes = world("fcn")
    data = {"x": X[:ROWS], "y": np.eye(classes)[y[:ROWS]], "batch_size": 32, "verbose": 0}
    data["validation_data"] = (X[ROWS:], np.eye(classes)[y[ROWS:]])
    start = time.perf_counter()
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(20,)),
            keras.layers.Dense(1000, activation="relu"),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(), loss=keras.losses.CategoricalCrossentropy())
    model.fit(epochs=epochs, **data)
    middle = time.perf_counter()
    model.fit(epochs=epochs, **data)
    return 1000 * (middle - start) / epochs, 1000 * (time.perf_counter() - middle) / epochs


def keras_rows(epochs):
    """Keras on each of its backends that is installed: TensorFlow, which is the paper's way, and jax."""
    rows = {}
    for backend, library in (("tensorflow", "tensorflow"), ("jax", "jax")):
        if not (importlib.util.find_spec("keras") and importlib.util.find_spec(library)):
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--keras", backend, "--epochs", str(epochs)],
            env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        fresh, compiled = map(float, done.stdout.split()[-2:])
        rows[f"Keras on {backend}, fresh, {epochs} epochs"] = fresh  # as many as the engine's: its set-up counts
        rows[f"Keras on {backend}, already compiled"] = compiled
    return rows


def best(function, *arguments, **options):
    """The least of three measurements: what the machine can do when nobody disturbs it."""
    return np.min([function(*arguments, **options) for _ in range(3)], axis=0).tolist()


def machine(device):
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    name = f"{joblib.cpu_count()} cores of {cpu}, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name()}, {name}" if device == "cuda" else name


def show(title, rows, reference):
    print(f"\n{title}")
    print(f"{'':44}{'ms per model-epoch':>20}{'engine is faster by':>21}")
    for name, value in rows.items():
        print(f"{name:44}{value:>20.4g}{value / rows[reference]:>19.1f} x")


def study_precision(models):
    """Train the same convnets on real digits in float32 and in bfloat16, with early stopping as in the paper.

    The question is whether bfloat16 moves results by more than what does not matter does: another seed, or row weights
    that differ by a millionth.
    """
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    grown = np.kron(images.reshape(-1, 8, 8) / 16, np.ones((3, 3)))  # 24 x 24, with a margin to 28 x 28
    X = np.pad(grown, ((0, 0), (2, 2), (2, 2)))[..., None].astype("float32")
    order = np.random.default_rng(0).permutation(len(y))
    rows, held_out, test = order[:500], order[500:600], order[600:]
    onehot = np.eye(10)[y]
    tasks = [Task(rows, onehot[rows], held_out, onehot[held_out], seed=k) for k in range(models)]
    nudged = [Task(**vars(t) | {"weights": np.full(len(rows), 1 + 1e-6)}) for t in tasks]
    runs = {
        "float32": (tasks, "float32"),
        "bfloat16": (tasks, "auto"),
        "float32, weights 1e-6 off": (nudged, "float32"),
    }
    predicted = {}
    print(f"\nconvnet-4 on scikit-learn's digits, {models} models, 500 rows: float32 against bfloat16")
    for name, (jobs, precision) in runs.items():
        trained = train(convnet(4), X, jobs, device="cuda", precision=precision)
        predicted[name] = trained.predict(X[test])
    exact = predicted["float32"]
    for name, now in predicted.items():
        right = (now == y[test]).mean(axis=1)
        gap = right - (exact == y[test]).mean(axis=1)
        seeds = (now != np.roll(now, 1, axis=0)).mean()
        print(
            f"{name:28} accuracy {right.mean():.4f} +- {right.std(ddof=1) / models**0.5:.4f}   "
            f"less float32 {gap.mean():+.4f} +- {gap.std(ddof=1) / models**0.5:.4f}   "
            f"churn to float32 {(now != exact).mean():.4f}   churn between seeds {seeds:.4f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--models", type=int, help="size of the stack of fcn-1000 (default 64 on a CPU, 4000 on a GPU)")
    parser.add_argument("--epochs", type=int, default=20, help="of each training; set-up is counted, so few cost more")
    parser.add_argument("--precision", action="store_true", help="compare bfloat16 with float32 (GPU)")
    parser.add_argument(
        "--memory", type=int, help="only train this many fcn-1000 for two epochs and show the peak memory"
    )
    parser.add_argument("--keras", metavar="BACKEND", help="only time Keras on this backend")
    args = parser.parse_args()
    if args.keras:
        os.environ["KERAS_BACKEND"] = args.keras
        print(*best(time_keras, args.epochs))
        return
    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if args.memory:
        value = time_engine("fcn", device, args.memory, 2)
        if device == "cuda":
            peak = torch.cuda.max_memory_allocated()
        else:
            import resource

            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{args.memory} models of fcn-1000 on {machine(device)}: {value:.4g} ms, peak {peak / 2**30:.1f} GiB")
        return
    models = args.models or (4000 if device == "cuda" else 128)
    engine = f"lowchurn, {models} models at once"
    rows = {engine: best(time_engine, "fcn", device, models, args.epochs)}
    rows["torch loop, one model"] = best(time_torch_loop, "fcn", device)
    if importlib.util.find_spec("sklearn"):
        rows["scikit-learn MLPClassifier, CPU"] = best(time_mlp_classifier)
    rows |= keras_rows(args.epochs)
    rows[engine + ", again"] = best(time_engine, "fcn", device, models, args.epochs)
    show(f"fcn-1000, 20 inputs, 2 classes, {ROWS} rows, batch 32; {machine(device)}", rows, engine)
    if device == "cuda":
        for kind, name, count in (
            ("convnet", "convnet-4 on 28 x 28 x 1", 256),
            ("transformer", "transformer-1 at 200", 128),
        ):
            engine = f"lowchurn, {count} models at once"
            rows = {engine: best(time_engine, kind, device, count, 2)}
            rows["torch loop, one model"] = best(time_torch_loop, kind, device, 20)
            if kind == "transformer":
                rows["lowchurn in bfloat16"] = best(time_engine, kind, device, count, 2, precision="bfloat16")
            show(name, rows, engine)
    if args.precision:
        study_precision(models=128)


if __name__ == "__main__":
    main()
