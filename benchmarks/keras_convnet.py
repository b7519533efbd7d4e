"""The paper's convnets in Keras, as its appendix prints them: python benchmarks/keras_convnet.py mnist --data DIR

An implementation of the protocol that shares nothing with lowchurn but the files: for each trial, the base on 1000
rows and a cold start on these and 1000 more, by Keras on TensorFlow (`pip install tensorflow-cpu`). It prints the
accuracy of both and the cold start's churn, which depends on no method, to read beside Table 2 of the paper and ours.
``--patience`` is 5 in the text of the paper and 3 in its code.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

INITIAL, VALIDATION, BATCH = 1000, 100, 1000


def images(path: Path) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels; pixels from 0 to 1 with a last axis of channels."""
    with np.load(path) as file:
        X, T, y, t = (file[name] for name in ("x_train", "x_test", "y_train", "y_test"))
    X, T = (each.astype("float32") * (1 / 255) for each in (X, T))
    return (*(each[..., None] if each.ndim == 3 else each for each in (X, T)), y.astype(int), t.astype(int))


def convnet(size: int, shape: tuple[int, ...], classes: int) -> keras.Model:
    """The network of the paper's appendix."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(16 * size, 5, padding="same", activation="relu"),
            layers.MaxPool2D(strides=2),
            layers.Conv2D(24 * size, 5, padding="valid", activation="relu"),
            layers.MaxPool2D(strides=2),
            layers.Flatten(),
            layers.Dense(128 * size, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(classes, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="categorical_crossentropy")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="such as mnist: DIR/images/mnist.npz")
    parser.add_argument("--data", type=Path, default=os.environ.get("LOWCHURN_DATA"), help="or LOWCHURN_DATA")
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--trials", type=int, default=12)
    chosen = parser.parse_args()
    if chosen.data is None:
        parser.error("where the data are: give --data or set LOWCHURN_DATA")
    X, T, y, t = images(Path(chosen.data) / "images" / f"{chosen.dataset}.npz")
    onehot = np.eye(int(y.max()) + 1, dtype="float32")[y]
    found = []
    for trial in range(chosen.trials):
        cuts = np.cumsum([INITIAL, VALIDATION, BATCH])
        initial, held_out, batch = np.split(np.random.default_rng(trial).permutation(len(X)), cuts)[:3]
        keras.utils.set_random_seed(trial)
        decided, epochs = [], []
        for rows in (initial, np.concatenate([initial, batch])):
            keras.backend.clear_session()
            model = convnet(chosen.size, X.shape[1:], onehot.shape[1])
            stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=chosen.patience)
            held = (X[held_out], onehot[held_out])
            history = model.fit(X[rows], onehot[rows], epochs=300, verbose=0, validation_data=held, callbacks=[stop])
            decided.append(model.predict(T, batch_size=500, verbose=0).argmax(1))
            epochs.append(len(history.history["loss"]))
        base, cold = decided
        found.append((np.mean(base == t), np.mean(cold == t), np.mean(base != cold), *epochs))
        mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=trial > 0) / (trial + 1) ** 0.5
        print(
            f"{chosen.dataset}, convnet-{chosen.size}, patience {chosen.patience}, {trial + 1} trials: "
            f"base {100 * mean[0]:.2f} %, cold start {100 * mean[1]:.2f} %, "
            f"churn {100 * mean[2]:.2f} +- {100 * error[2]:.2f} %, epochs {mean[3]:.1f} and {mean[4]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
