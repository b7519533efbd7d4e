"""How fast the engine trains, beside the ways one would train the same networks otherwise, in one run.

    make bench-engine
    python benchmarks/engine.py              # the same from a checkout, with nothing installed

Same work for all: fcn-1000, 20 inputs, 2 classes, 2,000 rows, batches of 32. Times are milliseconds per model and
epoch, the best of three. On a GPU also convnets, transformers and residual networks, end to end: training, validation
and the decisions on the test rows, beside an ordinary torch loop and the limit that the machine sets. ``--only`` times
these alone, on a CPU as well. ``--precision`` shows what bfloat16 changes.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import joblib
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lowchurn.nets import Task, train
from lowchurn.nets.networks import Conv, convnet, fcn, resnet, transformer

ROWS, HELD_OUT = 2000, 100


@dataclass(frozen=True)
class Work:
    """One kind of network with its data, and how it is timed on a GPU."""

    title: str
    network: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]  # of a row
    classes: int
    models: int = 256
    epochs: int = 10
    test: int = 10000


WORK = {
    "fcn": Work("fcn-1000, 20 inputs, 2 classes", lambda: fcn(1000, inputs=20, classes=2), (20,), 2),
    "convnet": Work("convnet-4 on 28 x 28 x 1", lambda: convnet(4), (28, 28, 1), 10),
    "colour": Work("convnet-4 on 32 x 32 x 3", lambda: convnet(4, shape=(32, 32, 3)), (32, 32, 3), 10),
    "transformer": Work("transformer-1 at length 200", lambda: transformer(1), (200,), 2, test=5000),
    "resnet": Work("resnet-50 on 32 x 32 x 3", lambda: resnet(50), (32, 32, 3), 10, models=32, epochs=5),
}


def world(kind, rows=ROWS + HELD_OUT, seed=0):
    """A pool of rows and labels for one kind of network."""
    shape, classes = WORK[kind].shape, WORK[kind].classes
    rng = np.random.default_rng(seed)
    if kind == "fcn":
        X = rng.normal(size=(rows, 20)).astype("float32")
        return X, (X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=rows) > 0).astype(int), 2
    y = rng.integers(classes, size=rows)
    if kind == "transformer":
        return made_text(y, rng), y, classes
    shapes = np.random.default_rng(99).normal(size=(classes, *shape)).astype("float32")  # the same for every seed
    return shapes[y] + 2.5 * rng.normal(size=(rows, *shape)).astype("float32"), y, classes


def made_text(y, rng, words=20000, length=200, strength=0.12):
    """Rows of token ids: frequent words come first, and each word is a little likelier in one of two classes."""
    frequency = 1 / (np.arange(words) + 10)
    side = np.random.default_rng(99).normal(size=words)  # the same for every seed
    X = np.empty((len(y), length), dtype=np.int32)
    for label in (0, 1):
        share = frequency * np.exp(strength * (2 * label - 1) * side)
        X[y == label] = rng.choice(words, size=(int((y == label).sum()), length), p=share / share.sum())
    return X


def tasks_for(y, classes, models):
    onehot = np.eye(classes)[y]
    rows, held_out = np.arange(ROWS), np.arange(ROWS, ROWS + HELD_OUT)
    return [Task(rows, onehot[rows], held_out, onehot[held_out], seed=k) for k in range(models)]


def time_engine(kind, device, models, epochs, **options):
    """A whole call of train(): starts, shuffles, validation and all."""
    X, y, classes = world(kind)
    network = WORK[kind].network()
    train(network, X, tasks_for(y, classes, min(models, 8)), epochs=1, device=device, **options)  # compile
    start = time.perf_counter()
    trained = train(network, X, tasks_for(y, classes, models), epochs=epochs, patience=epochs, device=device, **options)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    assert set(trained.status) == {"finished"}, set(trained.status)
    return 1000 * seconds / (models * epochs)


class OrdinaryConv(torch.nn.Conv2d):
    """A convolution as torch has it, its weights channels-last, for images that are."""

    def __init__(self, conv):
        height, _, inputs, outputs = conv.weight.shape
        super().__init__(inputs, outputs, height, conv.stride, conv.padding)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def ordinary(network):
    """The network with torch's own convolutions, so that the loop is as fast as torch is."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, Conv):
                setattr(module, name, OrdinaryConv(child))
    return network


def time_torch_loop(kind, device, steps=63, half=False, test=0, epochs=1):
    """One model, the ordinary way: a module, autograd, torch.optim.Adam; with ``half`` in bfloat16 by autocast."""
    X, y, _ = world(kind)
    network = ordinary(WORK[kind].network()).to(device)
    optimizer = torch.optim.Adam(network.parameters(), eps=1e-7, fused=device == "cuda")
    x, t = torch.as_tensor(X, device=device), torch.as_tensor(y, device=device)
    loss_of = torch.nn.CrossEntropyLoss()
    cast = functools.partial(torch.autocast, device, torch.bfloat16, enabled=half)

    def run(count):
        order = torch.randperm(ROWS, device=device)
        for step in range(count):
            part = order[32 * step : 32 * (step + 1)]
            optimizer.zero_grad()
            with cast():
                loss = loss_of(network(x[part]), t[part])
            loss.backward()
            optimizer.step()

    def predict(count):
        network.eval()
        with torch.no_grad(), cast():
            for part in torch.arange(count, device=device).split(1000):
                network(x[part % len(x)]).argmax(dim=-1)
        network.train()

    run(8)
    seconds = _seconds(run, device, steps) * 63 / steps
    if test:
        predict(1000)
        seconds += _seconds(predict, device, HELD_OUT) + _seconds(predict, device, test) / epochs
    return 1000 * seconds


def _seconds(function, device, *arguments):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function(*arguments)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def time_end_to_end(kind, models, epochs, test, **options):
    """Training, validation after every epoch, and the decisions on test rows, as milliseconds per model-epoch."""
    X, y, classes = world(kind, ROWS + HELD_OUT + test)
    network, old = WORK[kind].network(), slice(0, ROWS + HELD_OUT)

    def go(count, length):
        trained = train(
            network, X[old], tasks_for(y, classes, count), epochs=length, patience=length, device="cuda", **options
        )
        trained.decisions(X[old.stop :])
        assert set(trained.status) == {"finished"}, set(trained.status)

    go(min(models, 8), 1)  # compile
    return 1000 * _seconds(go, "cuda", models, epochs) / (models * epochs)


def rates():
    """Products in bfloat16 (operations a second) and copies (bytes a second) that this GPU reaches."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big, room = torch.empty(2**30, device="cuda"), torch.empty(2**30, device="cuda")
    seconds = []
    for work in (lambda: a @ a, lambda: room.copy_(big)):
        _seconds(work, "cuda")
        seconds.append(min(_seconds(lambda work=work: [work() for _ in range(10)], "cuda") for _ in range(3)) / 10)
    return 2 * 8192**3 / seconds[0], 8 * 2**30 / seconds[1]


def limits(kind, speed):
    """Milliseconds per model-epoch that products alone and Adam's memory alone would take.

    Products: three times the forward pass over the training rows, once over validation and test rows. Memory: weights
    and both moments read and written once in each step. No account of activations, which only kernels that never store
    them avoid.
    """
    work, network = WORK[kind], WORK[kind].network()
    row = torch.zeros(1, *work.shape, dtype=torch.long if kind == "transformer" else torch.float32)
    # Attention as plain products, or it would not be counted.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        network.eval()(row)
    rows = 3 * ROWS + HELD_OUT + work.test / work.epochs
    weights = sum(p.numel() for p in network.parameters())
    return 1000 * counter.get_total_flops() * rows / speed[0], 1000 * 24 * weights * (ROWS / 32) / speed[1]


def gpu_rows(kinds):
    """Each kind end to end: the engine in bfloat16, a torch loop over models in bfloat16, and the limits."""
    speed = rates()
    print(f"\nEnd to end, {ROWS} rows, batch 32, bfloat16; {machine('cuda')}")
    print(f"This machine: {speed[0] / 1e12:.0f} TFLOP/s in products of bfloat16, {speed[1] / 1e12:.2f} TB/s in copies")
    print(f"{'ms per model-epoch':30}{'engine':>10}{'products':>10}{'Adam':>8}{'torch loop':>12}{'faster by':>11}")
    for kind in kinds:
        work = WORK[kind]
        ours = time_end_to_end(kind, work.models, work.epochs, work.test, precision="bfloat16")
        loop = time_torch_loop(kind, "cuda", half=True, test=work.test, epochs=work.epochs)
        products, memory = limits(kind, speed)
        print(
            f"{work.title:30}{ours:>10.3f}{products:>10.3f}{memory:>8.3f}{loop:>12.1f}{loop / ours:>9.1f} x   "
            f"({work.models} models, {work.epochs} epochs, {work.test:,} test rows)",
            flush=True,
        )


def time_on_cpu(kind, models):
    """The engine, the engine with all models at once, and a torch loop, side by side."""
    return (
        time_engine(kind, "cpu", models, 1),
        time_engine(kind, "cpu", models, 1, generic=False),
        time_torch_loop(kind, "cpu"),
    )


def cpu_rows(kinds, models=4):
    """Each kind on a CPU: the engine, which trains one model after the other, all models at once, and a torch loop."""
    print(f"\n{models} models, {ROWS} rows, batch 32, one epoch; {machine('cpu')}")
    print(f"{'ms per model-epoch':30}{'engine':>10}{'all at once':>14}{'torch loop':>12}")
    for kind in kinds:
        ours, together, loop = best(time_on_cpu, kind, models)
        print(f"{WORK[kind].title:30}{ours:>10.4g}{together:>14.4g}{loop:>12.4g}", flush=True)


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


def digits(times=3, margin=2):
    """scikit-learn's digits, 8 x 8, grown so many times and with a margin: to 28 x 28, if nothing else is asked for."""
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    grown = np.kron(images.reshape(-1, 8, 8) / 16, np.ones((times, times)))
    X = np.pad(grown, ((0, 0), (margin, margin), (margin, margin)))[..., None].astype("float32")
    order = np.random.default_rng(0).permutation(len(y))
    return X, y, [(order[:500], order[500:600])], order[600:]


def words(rows=1000, test=5000):
    """Made text."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=rows + HELD_OUT + test)
    places = np.arange(len(y))
    return made_text(y, rng), y, [(places[:rows], places[rows : rows + HELD_OUT])], places[rows + HELD_OUT :]


def prepared(name, inputs, rows, draws=1):
    """A data set of a file made by ``lowchurn bench prepare``, with several draws of its rows."""
    from lowchurn.bench._loading import load

    data = load(name, inputs)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(data.train) for _ in range(draws)]
    X = data.X.astype("float32") / 255 if data.X.dtype == np.uint8 else data.X
    return X, data.y, [(order[:rows], order[rows : rows + HELD_OUT]) for order in orders], data.test


def study_precision(title, network, data, models, **stop):
    """Train the same networks in float32 and in bfloat16, with early stopping as in the paper or as ``stop`` says.

    The question is whether bfloat16 moves results by more than what does not matter does: another seed, or row weights
    that differ by a millionth.
    """
    X, y, splits, test = data
    onehot = np.eye(y.max() + 1)[y]
    drawn = [splits[k % len(splits)] for k in range(models)]
    tasks = [Task(rows, onehot[rows], held_out, onehot[held_out], seed=k) for k, (rows, held_out) in enumerate(drawn)]
    nudged = [Task(**vars(t) | {"weights": np.full(len(t.rows), 1 + 1e-6)}) for t in tasks]
    runs = {
        "float32": (tasks, "float32"),
        "float32, weights 1e-6 off": (nudged, "float32"),
        "bfloat16": (tasks, "bfloat16"),
    }
    print(f"\n{title}, {models} models, {len(drawn[0][0])} rows, {len(test)} test rows: float32 against bfloat16")
    exact = None
    for name, (jobs, precision) in runs.items():
        trained = train(network, X, jobs, device="cuda", precision=precision, **stop)
        now = trained.predict(X[test])
        exact = now if exact is None else exact
        right = (now == y[test]).mean(axis=1)
        gap = right - (exact == y[test]).mean(axis=1)
        seeds = (now != np.roll(now, 1, axis=0)).mean()
        print(
            f"{name:28} accuracy {right.mean():.4f} +- {right.std(ddof=1) / models**0.5:.4f}   "
            f"less float32 {gap.mean():+.4f} +- {gap.std(ddof=1) / models**0.5:.4f}   "
            f"churn to float32 {(now != exact).mean():.4f}   churn between seeds {seeds:.4f}   "
            f"epochs {trained.epochs.mean():.1f}",
            flush=True,
        )


def study_precisions(kinds, inputs, models):
    """Each family on made or small data, and on those of the paper that ``inputs`` contains."""
    from lowchurn.bench._loading import available

    there = available(inputs) if inputs else ()
    if "convnet" in kinds:
        study_precision("convnet-4 on scikit-learn's digits", convnet(4), digits(), models)
    if "transformer" in kinds:
        study_precision("transformer-1 on made text", transformer(1), words(), models)
        if "imdb" in there:
            study_precision("transformer-1 on IMDB", transformer(1), prepared("imdb", inputs, 1000), models)
    if "resnet" in kinds:
        small = resnet(50, shape=(16, 16, 1))
        study_precision("resnet-50 on scikit-learn's digits", small, digits(2, 0), min(models, 32))
        if "cifar10" in there:
            few = min(models, 8)  # training is chaotic, so each has its own rows and the same number of epochs
            images = prepared("cifar10", inputs, 2000, draws=few)
            study_precision("resnet-50 on CIFAR10", resnet(50), images, few, epochs=8, patience=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--models", type=int, help="of fcn-1000 at once (default 128 on a CPU, 4000 on a GPU), or in --precision"
    )
    parser.add_argument("--epochs", type=int, default=20, help="of each training; set-up is counted, so few cost more")
    parser.add_argument("--precision", action="store_true", help="only compare bfloat16 with float32 (GPU)")
    parser.add_argument("--inputs", help="file made by `lowchurn bench prepare` with imdb or cifar10, for --precision")
    parser.add_argument("--only", nargs="+", choices=[kind for kind in WORK if kind != "fcn"], help="only these")
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
    if args.precision:
        study_precisions(args.only or WORK, args.inputs, args.models or 128)
        return
    if args.only:
        (gpu_rows if device == "cuda" else cpu_rows)(args.only)
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
        gpu_rows([kind for kind in WORK if kind != "fcn"])


if __name__ == "__main__":
    main()
