"""Fine-tuning on IMDB reviews: weight interpolation (BCWI) beside distillation, the dial and sticky decisions.

make bench-hf        (needs LOWCHURN_DATA, or python benchmarks/huggingface.py --data DIR)

The decisions of each trial are written to a file of ``--out``, and the table is made of the files: a run that was
stopped goes on where it was, and more trials are added with a larger ``--trials``.

Schumann et al., "Backward Compatibility During Data Updates by Weight Interpolation" (EACL 2024): the new model is
fine-tuned from the old one on old and new rows, and weights between both are served (BCWI); SoupBCWI takes the mean of
several new models. ``dial`` is SoupBCWI with a budget and a certificate. Their models are pre-trained; here, without
downloads, a small BERT is trained from a configuration. Positions are chosen on one half of the test rows and reported
on the other.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from lowchurn.integrations._checkpoints import averaged
from lowchurn.integrations.huggingface import SoftTargetLoss, dial, probabilities, soften

BUDGETS = (0.01, 0.02, 0.05)
SHARES = 1 - np.linspace(0, 1, 31) ** 2  # closer together near the base, where budgets are small
LAMS = (0.2, 0.5, 0.8)
LENGTH = 64


def reviews(folder, rows, test, trial):
    """Token ids and labels of reviews in an order of this trial; the words are those of the training rows."""
    frame = pd.read_parquet(Path(folder) / "text" / "imdb.parquet")
    frame = frame.assign(text=frame.text.str.replace("<br />", " ", regex=False))
    train, held = (frame[frame.split == name].sample(frac=1, random_state=trial) for name in ("train", "test"))
    train, held = train[:rows], held[:test]
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words.train_from_iterator(train.text, trainers.WordLevelTrainer(vocab_size=8000, special_tokens=["[PAD]", "[UNK]"]))
    words.enable_truncation(LENGTH, direction="left")  # reviews end with their verdict
    words.enable_padding(length=LENGTH)
    made = []
    for part in (train, held):
        found = words.encode_batch(list(part.text))
        columns = {"input_ids": [one.ids for one in found], "attention_mask": [one.attention_mask for one in found]}
        made.append(Dataset.from_dict(columns | {"label": part.label.astype(int).tolist()}))
    return made


def fresh(seed):
    set_seed(seed)
    size = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=8000, max_position_embeddings=LENGTH, **size))


def trained(model, rows, seed, epochs, rate=2e-3):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, learning_rate=rate, per_device_train_batch_size=32, seed=seed,
            report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no", use_cpu=True,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=rows, compute_loss_func=SoftTargetLoss()).train()
    return model.eval()


def copied(model):
    twin = BertForSequenceClassification(model.config)
    twin.load_state_dict(model.state_dict())
    return twin


def trial(folder, args, seed):
    """Return the labels, the decisions of the base, and for each method its decisions at each position."""
    rows, test = reviews(folder, 2 * args.old, args.test, seed)
    old = rows.select(range(args.old))
    base = trained(fresh(seed), old, seed, args.epochs)
    runs = [trained(copied(base), rows, 100 * seed + k, args.epochs, 1e-3) for k in range(args.runs)]
    before = probabilities(base, test, batch_size=256)
    y = np.array(test["label"][:])

    def between(models):
        path = averaged("benchmark", base, models)
        for share in SHARES.tolist():
            path.put(share, lambda: iter(()))
            yield probabilities(path.model, test, batch_size=256).argmax(axis=1)

    def sticky(proba):
        decided, kept = proba.argmax(axis=1), before.argmax(axis=1)
        gain = proba.max(axis=1) - proba[np.arange(len(proba)), kept]
        for margin in (1.0, *np.quantile(gain[gain > 0], np.linspace(1, 0, 201))):
            yield np.where(gain > margin, decided, kept)

    answers = [probabilities(run, test, batch_size=256) for run in runs]
    cold = probabilities(trained(fresh(seed + 1000), rows, seed + 1000, args.epochs), test, batch_size=256)
    soft = [trained(copied(base), soften(rows, base, lam, batch_size=256), seed, args.epochs, 1e-3) for lam in LAMS]
    methods = {
        "plain retrain": [cold.argmax(axis=1)],
        "fine-tuned from the base": [answers[0].argmax(axis=1)],
        "distilled, fine-tuned": [probabilities(model, test, batch_size=256).argmax(axis=1) for model in soft],
        "BCWI (one run)": list(between(runs[:1])),
        f"SoupBCWI = dial ({args.runs} runs)": list(between(runs)),
        f"sticky on the mean of {args.runs}": list(sticky(np.mean(answers, axis=0))),
    }
    found = dial(base, runs, test, max_churn=0.02, confidence=0.9, batch_size=256)
    print(f"trial {seed}: dial at 2 %: share {found.share:g}, churn {100 * found.churn:.2f} %. {found.certificate}")
    return {"y": y, "base": before.argmax(axis=1), **{name: np.array(found) for name, found in methods.items()}}


def stored(folder, args, seed):
    """The decisions of a trial, from its file where there is one."""
    setting = f"{args.old}-{args.test}-{args.runs}-{args.epochs}"
    path = Path(args.out) / f"{setting}-{seed}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            np.savez_compressed(file, **trial(folder, args, seed))
        os.replace(file.name, path)
    with np.load(path) as found:
        return dict(found)


def chosen(y, base, positions, half, budget, least):
    """The best position on one half: the most accurate within a budget, or the least broken that is as accurate."""
    rows = np.arange(len(y)) % 2 == half
    seen = []
    for k, new in enumerate(positions):
        right = (new == y)[rows].mean()
        broken = ((base == y) & (new != y))[rows].mean()
        if budget is None:
            seen.append((right < least[half], broken, k))
        else:
            seen.append(((new != base)[rows].mean() > budget, -right, k))
    over, _, k = min(seen)
    return None if over else positions[k]


def reported(one, name, budget):
    """Gain over the base in points, churn and broken in percent, chosen on a half, measured on the other: two rows."""
    y, base, rows = one["y"], one["base"], []
    target = one["fine-tuned from the base"][0]
    least = [(target == y)[np.arange(len(y)) % 2 == half].mean() for half in (0, 1)]
    for half in (0, 1):
        new, other = chosen(y, base, one[name], half, budget, least), np.arange(len(y)) % 2 != half
        if new is not None:
            measured = (1.0 * (new == y) - (base == y), new != base, (base == y) & (new != y))
            rows.append([100 * values[other].mean() for values in measured])
    return rows


def cell(trials):
    """Means over trials with their standard errors; the two halves of a trial share its models and count as one."""
    halves = sum(map(len, trials))
    if not halves:
        return "none"
    means = np.array([np.mean(rows, axis=0) for rows in trials if rows])
    bands = [""] * 3  # of one trial there is none
    if len(means) > 1:
        bands = [f" ± {error:.2f}" for error in means.std(axis=0, ddof=1) / np.sqrt(len(means))]
    gain, *rest = (f"{mean:.2f}{band}" for mean, band in zip(means.mean(axis=0), bands, strict=True))
    shown = " / ".join([gain if gain.startswith("-") else f"+{gain}", *rest])
    return shown if halves == 2 * len(trials) else f"{shown} (in {halves} of {2 * len(trials)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LOWCHURN_DATA"), help="folder with text/imdb.parquet")
    parser.add_argument("--old", type=int, default=2500, help="rows of the base; the update doubles them")
    parser.add_argument("--test", type=int, default=4000)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="out/hf", help="folder of the decisions of each trial")
    args = parser.parse_args()
    if not args.data:
        parser.error("give --data DIR or set LOWCHURN_DATA")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    trials = [stored(args.data, args, seed) for seed in range(args.trials)]
    base = np.mean([100 * (one["base"] == one["y"]).mean() for one in trials])
    table = Table(
        title=f"IMDB, {args.old:,} then {2 * args.old:,} rows, {args.trials} trials; the base has {base:.2f} %; "
        "gain in points / churn / broken in percent on rows that chose nothing, ± standard errors over trials"
    )
    for heading in ("method", "as accurate as fine-tuned", *(f"budget {100 * budget:g} %" for budget in BUDGETS)):
        table.add_column(heading)
    for name in [name for name in trials[0] if name not in ("y", "base")]:
        table.add_row(name, *(cell([reported(one, name, budget) for one in trials]) for budget in (None, *BUDGETS)))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
