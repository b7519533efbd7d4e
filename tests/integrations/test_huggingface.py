"""Hugging Face with tiny models made from configurations: what Trainer does to soft labels, the dial, the audit."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
pytest.importorskip("accelerate")

from lowchurn.integrations.huggingface import (  # noqa: E402
    ChurnMetrics,
    SoftTargetLoss,
    audit_trainer,
    dial,
    probabilities,
    soften,
)
from lowchurn.scoring import BrierScore, LogScore  # noqa: E402
from tests.integrations.tiny import (  # noqa: E402
    CLASSES,
    arguments,
    fine_tuned,
    images,
    sentences,
    text_model,
    vision_model,
    weights_of,
)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


# The loss.


def test_the_loss_is_the_mean_over_rows_in_closed_form():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(6, 3)), rng.dirichlet([1, 1, 1], 6)
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    outputs = {"logits": torch.tensor(logits)}
    for name, score in (("log", LogScore()), ("brier", BrierScore())):
        found = SoftTargetLoss(name)(outputs, torch.tensor(targets)).item()
        assert found == pytest.approx(score.expected(targets, proba).mean(), rel=1e-5)
    assert SoftTargetLoss()((outputs["logits"],), torch.tensor([0, 1, 2, 0, 1, 2])).item() == pytest.approx(
        -np.log(proba[np.arange(6), [0, 1, 2, 0, 1, 2]]).mean(), rel=1e-5
    )


def test_trainer_counts_every_number_of_a_soft_label(tmp_path):
    """The trap: a step of 8 rows has 24 items, so that a usual custom loss is three times too small."""
    seen = []

    def usual(outputs, labels, num_items_in_batch=None):
        seen.append(int(num_items_in_batch))
        return SoftTargetLoss()(outputs, labels, num_items_in_batch)

    rows = soften(sentences(8), text_model(0), 0.5)
    trainer = transformers.Trainer(
        text_model(1), arguments(tmp_path, per_device_train_batch_size=8, max_steps=1), train_dataset=rows,
        compute_loss_func=usual,
    )  # fmt: skip
    logged = trainer.train().training_loss
    assert seen == [8 * len(CLASSES)]
    by_hand = SoftTargetLoss()(text_model(1)(torch.tensor(rows["input_ids"][:])), torch.tensor(rows["labels"][:]))
    assert logged == pytest.approx(by_hand.item(), rel=1e-5)


def one_step_by_hand(rows, seed=1, rate=0.1):
    model = text_model(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    logits = model(input_ids=torch.tensor(rows["input_ids"][:])).logits
    targets = torch.tensor(rows["labels"][:])
    (-(targets * torch.log_softmax(logits, dim=-1)).sum(dim=1)).mean().backward()
    optimiser.step()
    return weights_of(model)


@pytest.mark.parametrize(("batch", "accumulate"), [(8, 1), (2, 4), (3, 3), (1, 8)])
def test_gradient_accumulation_gives_the_step_of_one_large_batch(tmp_path, batch, accumulate):
    rows = soften(sentences(8), text_model(0), 0.5)
    more = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulate}
    trainer = fine_tuned(
        text_model(1), rows, tmp_path, max_steps=1, optim="sgd", learning_rate=0.1, max_grad_norm=0, **more
    )
    expected = one_step_by_hand(rows)
    assert max((a - b).abs().max() for a, b in zip(weights_of(trainer.model), expected, strict=True)) < 1e-6


def test_processes_with_unequal_rows_add_up():
    """Trainer gathers the count of all processes, multiplies each loss by their number, and gradients are averaged."""
    rng = np.random.default_rng(0)
    logits, labels = torch.tensor(rng.normal(size=(7, 3))), torch.tensor(rng.dirichlet([1, 1, 1], 7))
    whole = SoftTargetLoss()({"logits": logits}, labels)
    parts = [SoftTargetLoss()({"logits": logits[k]}, labels[k], 7 * 3) for k in (slice(0, 5), slice(5, 7))]
    assert np.mean([2 * part.item() for part in parts]) == pytest.approx(whole.item(), rel=1e-6)


@pytest.mark.slow
def test_two_processes_give_the_step_of_one(tmp_path):
    """Started as torchrun starts them; both hold the weights of the step on all rows at once."""
    script = Path(__file__).parent / "two_processes.py"
    port = str(20000 + os.getpid() % 20000)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    shared |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [one.communicate(timeout=240)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], errors[0][-3000:]
    expected = one_step_by_hand(soften(sentences(8), text_model(0), 0.5))
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert max((a - b).abs().max() for a, b in zip(found, expected, strict=True)) < 1e-6


def test_several_gpus_of_one_process_are_divided_out():
    """Trainer gives one entry of the count per GPU and multiplies the loss by their number afterwards."""
    logits, labels = torch.zeros(4, 2), torch.full((4, 2), 0.5)
    plain = SoftTargetLoss()({"logits": logits}, labels, torch.tensor(8))
    items = torch.tensor(8).unsqueeze(0).expand(2, -1)
    assert (SoftTargetLoss()({"logits": logits}, labels, items) * 2).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_soft_labels_survive_collators_and_removed_columns(tmp_path, removed, padded):
    rows = soften(sentences(8), text_model(0), 0.5)
    assert sorted(rows.column_names) == ["input_ids", "labels"]
    seen = []

    def loss(outputs, labels, num_items_in_batch=None):
        seen.append(labels.detach().clone())
        return SoftTargetLoss()(outputs, labels, num_items_in_batch)

    collator = transformers.DataCollatorWithPadding(tokenizer()) if padded else None
    fine_tuned(
        text_model(1), rows, tmp_path, loss=loss, data_collator=collator, max_steps=1, per_device_train_batch_size=8,
        remove_unused_columns=removed, train_sampling_strategy="sequential",
    )  # fmt: skip
    np.testing.assert_allclose(seen[0].numpy(), rows["labels"][:], atol=1e-7)


def tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({f"w{k}": k for k in range(32)}, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0")


def test_a_column_of_another_name_is_lost_and_the_loss_says_so(tmp_path):
    rows = soften(sentences(8), text_model(0), 0.5).rename_column("labels", "soft")
    with pytest.raises(ValueError, match="the batch has no labels.*call the column of soft labels 'labels'"):
        fine_tuned(text_model(1), rows, tmp_path, max_steps=1)


def test_float_labels_do_not_make_the_model_guess_several_labels_per_row(tmp_path):
    rows = soften(sentences(8), text_model(0), 0.5)
    trap = text_model(1)
    trap(input_ids=torch.tensor(rows["input_ids"][:]), labels=torch.tensor(rows["labels"][:]))
    assert trap.config.problem_type == "multi_label_classification"
    trainer = fine_tuned(text_model(1), rows, tmp_path, max_steps=1, eval_dataset=sentences(8))
    trainer.evaluate()
    assert trainer.model.config.problem_type is None
    with pytest.raises(ValueError, match="one of several classes, got problem_type='multi_label_classification'"):
        soften(sentences(8), trap, 0.5)


def test_labels_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"shape of the logits, \(2, 3\), got \(2, 2\)"):
        SoftTargetLoss()({"logits": torch.zeros(2, 3)}, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="unknown score 'lgo'"):
        SoftTargetLoss("lgo")


# Soft labels.


def test_soft_labels_are_the_mixture_whatever_mode_the_base_is_in():
    rows, base = sentences(10), text_model(0, dropout=0.5)
    proba = probabilities(base, rows)
    expected = 0.3 * np.eye(3)[rows["label"][:]] + 0.7 * proba
    base.train()
    for source in (base, proba):
        np.testing.assert_allclose(soften(rows, source, 0.3, batch_size=3)["labels"][:], expected, atol=1e-6)
    assert base.training
    base.save_pretrained("base")
    np.testing.assert_allclose(soften(rows, "base", 0.3)["labels"][:], expected, atol=1e-6)
    np.testing.assert_array_equal(soften(rows, base, 1.0)["labels"][:], np.eye(3)[rows["label"][:]])


def test_classes_are_matched_by_name():
    rows, base = sentences(10), text_model(0)
    turned = text_model(0)
    turned.config.id2label = {0: "sad", 1: "happy", 2: "neutral"}
    names = [turned.config.id2label[k] for k in range(3)]
    proba = probabilities(base, rows)[:, [names.index(name) for name in CLASSES]]
    np.testing.assert_allclose(soften(rows, turned, 0.0)["labels"][:], proba, atol=1e-6)
    turned.config.id2label = {0: "x", 1: "y", 2: "z"}
    with pytest.raises(ValueError, match=r"the base has the classes \['x', 'y', 'z'\], the dataset"):
        soften(rows, turned, 0.5)


def test_rows_of_different_lengths_need_a_collator():
    rows = datasets.Dataset.from_dict({"input_ids": [[1], [2, 3]], "label": [0, 1]})
    with pytest.raises(ValueError, match=r"rows differ in length. Give collator=DataCollatorWithPadding\(tokenizer\)"):
        soften(rows, text_model(0), 0.5)
    assert len(soften(rows, text_model(0), 0.5, collator=transformers.DataCollatorWithPadding(tokenizer()))) == 2


@pytest.mark.parametrize(
    ("make", "base", "message"),
    [
        (lambda: sentences(4), np.full((3, 3), 1 / 3), "base has answers for 3 rows, the dataset has 4"),
        (lambda: sentences(4), np.full((4, 3), 0.5), "every row of base must sum to 1"),
        (lambda: sentences(4), np.array([0, 1, 2, 0]), "must give probabilities"),
        (lambda: sentences(4).remove_columns("label"), None, "must have a column 'label' or 'labels'"),
        (lambda: sentences(4).rename_column("input_ids", "words"), "model", "no column that BertFor"),
        (lambda: soften(sentences(4), text_model(0), 0.5), "model", "A dataset is softened once"),
        (lambda: [1, 2], None, "must be a datasets.Dataset with a length, got list"),
        (lambda: sentences(4), "nowhere", "must be a folder that save_pretrained wrote"),
    ],
)
def test_what_cannot_be_softened_is_refused(make, base, message):
    base = text_model(0) if isinstance(base, str) and base == "model" else base
    with pytest.raises(ValueError, match=message):
        soften(make(), base, 0.5)


# Metrics and the audit.


def test_metrics_in_closed_form(tmp_path):
    rows, base = sentences(30), text_model(0)
    old = probabilities(base, rows).argmax(axis=1)
    y = np.array(rows["label"][:])
    trainer = transformers.Trainer(
        text_model(1), arguments(tmp_path), eval_dataset=rows, compute_metrics=ChurnMetrics(old, labels=y)
    )
    new = probabilities(trainer.model, rows).argmax(axis=1)
    found = trainer.evaluate()
    assert found["eval_churn"] == (old != new).mean() > 0
    assert found["eval_broken"] == ((old == y) & (new != y)).mean()
    assert found["eval_fixed"] == ((old != y) & (new == y)).mean()
    assert found["eval_accuracy"] == (new == y).mean()
    result = audit_trainer(trainer, rows, base)
    assert result.churn.value == found["eval_churn"]
    assert result.broken.value == found["eval_broken"]


def test_an_evaluation_sorted_by_length_is_noticed_and_the_audit_is_not_misled(tmp_path):
    rng = np.random.default_rng(0)
    rows = datasets.Dataset.from_dict(
        {"input_ids": [rng.integers(1, 30, size=n).tolist() for n in rng.integers(2, 8, 40)],
         "label": rng.integers(3, size=40)}
    )  # fmt: skip
    base, collator = text_model(0), transformers.DataCollatorWithPadding(tokenizer())
    old = probabilities(base, rows, collator=collator, batch_size=1).argmax(axis=1)
    trainer = transformers.Trainer(
        text_model(0), arguments(tmp_path, train_sampling_strategy="group_by_length", per_device_eval_batch_size=4),
        eval_dataset=rows, data_collator=collator, processing_class=tokenizer(),
        compute_metrics=ChurnMetrics(old, labels=rows["label"][:]),
    )  # fmt: skip
    with pytest.raises(ValueError, match="labels in another order"):
        trainer.evaluate()
    assert audit_trainer(trainer, rows, base).churn.value == 0  # the same model


def test_bad_metrics_are_refused():
    answer = transformers.EvalPrediction(predictions=np.zeros((3, 2)), label_ids=np.zeros(3, dtype=int))
    with pytest.raises(ValueError, match="decisions for 2 rows, the evaluation has 3"):
        ChurnMetrics([0, 1])(answer)
    soft = transformers.EvalPrediction(predictions=np.zeros((3, 2)), label_ids=np.full((3, 2), 0.5))
    with pytest.raises(ValueError, match="Soften the training rows alone"):
        ChurnMetrics([0, 1, 1])(soft)
    with pytest.raises(ValueError, match="base_predictions must be class indices"):
        ChurnMetrics([0.5, 1.0])


def test_an_audit_has_names_slices_and_probabilities(tmp_path):
    rows = sentences(40).add_column("source", ["a", "b"] * 20).add_column("key", [f"k{i}" for i in range(40)])
    trainer = transformers.Trainer(text_model(1), arguments(tmp_path))
    proba = probabilities(text_model(0), rows)
    result = audit_trainer(trainer, rows, proba, id="key", by="source", old_name="production")
    assert {one.value for one in result.slices} >= {"a", "b"}
    assert result.soft  # figures that rest on probabilities
    assert {(flip["old"], flip["new"]) for flip in result.flips} <= {(a, b) for a in CLASSES for b in CLASSES}
    decided = audit_trainer(trainer, rows.remove_columns("label"), proba.argmax(axis=1))
    assert decided.churn.value == result.churn.value
    with pytest.raises(ValueError, match="no column 'sauce'"):
        audit_trainer(trainer, rows, proba, by="sauce")


# The dial.


def nearby(seed, base, step=0.3):
    """A checkpoint not far from a base."""
    model = text_model(0)
    model.load_state_dict(base.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value += step * torch.randn(value.shape, generator=generator)
    return model


def test_the_dial_keeps_the_budget_and_its_ends_are_exact(tmp_path):
    base = text_model(0)
    runs = [nearby(k, base) for k in range(2)]
    for name, model in {"base": base, "one": runs[0], "two": runs[1]}.items():
        model.save_pretrained(tmp_path / name)
    rows = sentences(200)
    found = dial(tmp_path / "base", [tmp_path / "one", tmp_path / "two"], rows, max_churn=0.1, positions=11)
    assert [one["share"] for one in found.positions] == pytest.approx(np.linspace(1, 0, 11))
    assert found.positions[0]["churn"] == 0 < found.positions[-1]["churn"]
    assert found.churn <= 0.1
    within = [one for one in found.positions if one["churn"] <= 0.1]
    assert found.accuracy == max(one["accuracy"] for one in within)
    new, old = (probabilities(model, rows).argmax(axis=1) for model in (found.model, base))
    assert (new != old).mean() == found.churn
    everything = dial(base, runs, rows.remove_columns("label"), max_churn=0.99, positions=2)
    assert everything.share == 0
    for mean, one, two in zip(*(weights_of(model) for model in (everything.model, *runs)), strict=True):
        torch.testing.assert_close(mean, (one.double() + two.double()).div(2).float(), rtol=0, atol=0)
    still = dial(base, runs, rows, max_churn=1e-9, positions=3)
    assert still.share == 1 or still.churn == 0
    assert np.isnan(everything.accuracy)


def test_the_certificate_is_of_rows_that_chose_nothing():
    base = text_model(0)
    found = dial(base, [nearby(1, base)], sentences(400), max_churn=0.2, confidence=0.9, positions=5)
    assert found.certificate.certified
    assert found.certificate.rows == 200
    assert found.certificate.upper_bound <= 0.2
    few = dial(base, [nearby(1, base)], sentences(20), max_churn=0.01, confidence=0.9, positions=3)
    assert not few.certificate.certified
    assert few.certificate.rows_needed > 10


def test_products_of_lora_are_averaged_and_not_factors(tmp_path):
    peft = pytest.importorskip("peft")
    base = text_model(0)
    base.save_pretrained(tmp_path / "base")
    products = []
    for k in range(2):
        config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"], modules_to_save=["classifier"])
        model = peft.get_peft_model(text_model(0), config)
        generator = torch.Generator().manual_seed(k)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "lora_" in name:
                    value.copy_(torch.randn(value.shape, generator=generator))
        model.save_pretrained(tmp_path / f"run-{k}")
        layer = model.get_base_model().bert.encoder.layer[0].attention.self.query
        factors = layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach()
        products.append((*factors, layer.scaling["default"]))
    found = dial(
        tmp_path / "base", [tmp_path / "run-0", tmp_path / "run-1"], sentences(20).remove_columns("label"),
        max_churn=0.999, positions=2,
    )  # fmt: skip
    assert found.share == 0
    query = found.model.bert.encoder.layer[0].attention.self.query.weight
    old = base.bert.encoder.layer[0].attention.self.query.weight
    right = sum(scale * B @ A for A, B, scale in products) / 2
    (A0, B0, scale), (A1, B1, _) = products
    wrong = scale * ((B0 + B1) / 2) @ ((A0 + A1) / 2)
    torch.testing.assert_close(query - old, right, atol=1e-5, rtol=0)
    assert (right - wrong).abs().max() > 0.1


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    base, rows = text_model(0), sentences(10)
    with pytest.raises(ValueError, match="other layers than the base: bert.embeddings.*more differ"):
        dial(base, [text_model(0, width=16)], rows, max_churn=0.1)
    with pytest.raises(ValueError, match="list of at least one checkpoint, got 'run'"):
        dial(base, "run", rows, max_churn=0.1)
    base.bert.save_pretrained(tmp_path / "headless")
    about = json.loads((tmp_path / "headless" / "config.json").read_text())
    about["architectures"] = ["BertForSequenceClassification"]
    (tmp_path / "headless" / "config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="has no weights for classifier.* drawn at random"):
        dial(tmp_path / "headless", [base], rows, max_churn=0.1)
    base.save_pretrained(tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(base.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        dial(tmp_path / "pickled", [base], rows, max_churn=0.1)


# Vision.


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_images_from_soft_labels_to_the_dial(tmp_path, kind):
    rows, base = images(24), vision_model(kind, 0)
    trainer = fine_tuned(vision_model(kind, 0), soften(rows, base, 0.5), tmp_path, max_steps=3, learning_rate=0.01)
    assert audit_trainer(trainer, rows, base).rows.paired == 24
    found = dial(base, [trainer.model], rows, max_churn=0.3, positions=3)
    assert found.churn <= 0.3
    new, old = (probabilities(model, rows).argmax(axis=1) for model in (found.model, base))
    assert (new != old).mean() == pytest.approx(found.churn)


def test_statistics_of_batch_normalisation_are_computed_anew():
    """Between two networks they are not the mean of both, but those of the rows."""
    rows, base, run = images(32), vision_model("resnet", 0), vision_model("resnet", 1)
    found = dial(base, [run, base], rows.remove_columns("label"), max_churn=0.999, positions=2)
    norm = next(m for m in found.model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    first = next(m for m in found.model.modules() if isinstance(m, torch.nn.Conv2d))
    first.register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    with torch.no_grad():
        found.model(torch.tensor(rows["pixel_values"][:]))
    assert found.share == 0
    torch.testing.assert_close(norm.running_mean, seen[0].mean(dim=(0, 2, 3)), atol=1e-5, rtol=1e-4)


def test_the_example_fine_tunes_on_reviews_where_they_are_there(tmp_path):
    data = os.environ.get("LOWCHURN_DATA", "")
    if not Path(data, "text", "imdb.parquet").is_file():
        pytest.skip("LOWCHURN_DATA has no text/imdb.parquet")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "huggingface_text.py"))
    served = example["main"](data, rows=300, out=tmp_path)
    assert served.churn <= 0.05
    assert (tmp_path / "release" / "model.safetensors").is_file()
