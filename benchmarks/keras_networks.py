"""The paper's convnets and transformers in Keras, as its appendix prints them, beside those of lowchurn.

    python benchmarks/keras_networks.py mnist --data DIR                       # DIR/images/mnist.npz, convnet-4
    python benchmarks/keras_networks.py imdb --data DIR --network transformer-2    # DIR/text/imdb.parquet

An implementation of the protocol that shares nothing with lowchurn but the files: for each trial the base on 1000 rows
and a cold start on these and 1000 more, by Keras on TensorFlow (`pip install keras tensorflow-cpu pandas pyarrow`).
It prints the accuracy of both and the cold start's churn, which depends on no method, to read beside the paper's tables
and ours. ``--patience`` is 5 in the text of the paper and 3 in its code. ``--one-order`` sets TensorFlow's seed: Keras
then gives every epoch of a training its rows in the same order. ``--raw`` leaves pixels between 0 and 255.
"""

from __future__ import annotations

import argparse
import os
import random
import re
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers, ops

INITIAL, VALIDATION, BATCH = 1000, 100, 1000
VOCABULARY, LENGTH = 20000, 200


def images(path: Path, most: float) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels; pixels from 0 to ``most`` with a last axis of channels."""
    with np.load(path) as file:
        X, T, y, t = (file[name] for name in ("x_train", "x_test", "y_train", "y_test"))
    X, T = (each.astype("float32") * (most / 255) for each in (X, T))
    return (*(each[..., None] if each.ndim == 3 else each for each in (X, T)), y.astype(int), t.astype(int))


def texts(path: Path) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels; the last words of each text, by how often they occur."""
    import pandas

    table = pandas.read_parquet(path)
    words = [re.findall("[a-z0-9']+", text.lower().replace("<br />", " ")) for text in table.text]
    train = (table.split == "train").to_numpy()
    often = Counter(word for some, known in zip(words, train, strict=True) if known for word in some)
    number = {word: 3 + i for i, (word, _) in enumerate(often.most_common(VOCABULARY - 3))}
    ids = [[1, *(number.get(word, 2) for word in some)] for some in words]
    X, y = keras.utils.pad_sequences(ids, LENGTH), table.label.to_numpy()
    return X[train], X[~train], y[train], y[~train]


def convnet(size: int, shape: tuple[int, ...], classes: int) -> keras.Model:
    return keras.Sequential(
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


def transformer(size: int, shape: tuple[int, ...], classes: int) -> keras.Model:
    width = 32 * size
    ids = layers.Input(shape)
    x = layers.Embedding(VOCABULARY, width)(ids)
    x = x + layers.Embedding(LENGTH, width)(ops.arange(shape[0]))
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.MultiHeadAttention(2 * size, width)(x, x))
    found = layers.Dense(width)(layers.Dense(width, activation="relu")(x))
    x = layers.LayerNormalization(epsilon=1e-6)(x + found)
    return keras.Model(ids, layers.Dense(classes, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="such as mnist, or imdb")
    parser.add_argument("--data", type=Path, default=os.environ.get("LOWCHURN_DATA"), help="or LOWCHURN_DATA")
    parser.add_argument("--network", help="such as convnet-4 or transformer-1; by default these two")
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--one-order", action="store_true", help="the same order of rows in every epoch")
    parser.add_argument("--raw", action="store_true", help="pixels from 0 to 255 instead of 0 to 1")
    parser.add_argument("--trials", type=int, default=12)
    chosen = parser.parse_args()
    if chosen.data is None:
        parser.error("where the data are: give --data or set LOWCHURN_DATA")
    text = chosen.dataset == "imdb"
    kind, size = (chosen.network or ("transformer-1" if text else "convnet-4")).split("-")
    make = {"convnet": convnet, "transformer": transformer}[kind]
    data = Path(chosen.data)
    if text:
        X, T, y, t = texts(data / "text" / "imdb.parquet")
    else:
        X, T, y, t = images(data / "images" / f"{chosen.dataset}.npz", 255 if chosen.raw else 1)
    onehot = np.eye(int(y.max()) + 1, dtype="float32")[y]
    found = []
    for trial in range(chosen.trials):
        cuts = np.cumsum([INITIAL, VALIDATION, BATCH])
        initial, held_out, batch = np.split(np.random.default_rng(trial).permutation(len(X)), cuts)[:3]
        if chosen.one_order:
            keras.utils.set_random_seed(trial)
        else:
            random.seed(trial)  # the weights to start from; orders stay TensorFlow's own
        decided, epochs = [], []
        for rows in (initial, np.concatenate([initial, batch])):
            keras.backend.clear_session()
            model = make(int(size), X.shape[1:], onehot.shape[1])
            model.compile(optimizer="adam", loss="categorical_crossentropy")
            stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=chosen.patience)
            held = (X[held_out], onehot[held_out])
            history = model.fit(X[rows], onehot[rows], epochs=300, verbose=0, validation_data=held, callbacks=[stop])
            decided.append(model.predict(T, batch_size=500, verbose=0).argmax(1))
            epochs.append(len(history.history["loss"]))
        base, cold = decided
        found.append((np.mean(base == t), np.mean(cold == t), np.mean(base != cold), *epochs))
        mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=trial > 0) / (trial + 1) ** 0.5
        print(
            f"{chosen.dataset}, {kind}-{size}, patience {chosen.patience}{', one order' * chosen.one_order}"
            f"{', raw pixels' * chosen.raw}, {trial + 1} trials: base {100 * mean[0]:.2f} +- {100 * error[0]:.2f} %, "
            f"cold start {100 * mean[1]:.2f} +- {100 * error[1]:.2f} %, "
            f"churn {100 * mean[2]:.2f} +- {100 * error[2]:.2f} %, epochs {mean[3]:.1f} and {mean[4]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
