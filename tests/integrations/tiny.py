"""Tiny models made from configurations, and rows for them; nothing is downloaded."""

import numpy as np
import torch
import transformers
from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from lowchurn.integrations.huggingface import SoftTargetLoss

CLASSES = ["happy", "neutral", "sad"]


def text_model(seed, dropout=0.0, width=8):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=32,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
        initializer_range=1.0,
    )
    return BertForSequenceClassification(config)


def sentences(rows, seed=0):
    rng = np.random.default_rng(seed)
    features = Features({"input_ids": List(Value("int64")), "label": ClassLabel(names=CLASSES)})
    words = rng.integers(1, 32, size=(rows, 6))
    return Dataset.from_dict({"input_ids": words.tolist(), "label": (words[:, 0] % 3).tolist()}, features=features)


def vision_model(kind, seed):
    torch.manual_seed(seed)
    if kind == "vit":
        config = transformers.ViTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            image_size=8,
            patch_size=4,
            num_channels=1,
            num_labels=3,
        )
        return transformers.ViTForImageClassification(config)
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return transformers.ResNetForImageClassification(config)


def images(rows, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows)
    pixels = rng.normal(size=(rows, 1, 8, 8)) + y[:, None, None, None]
    return Dataset.from_dict({"pixel_values": pixels.astype("float32").tolist(), "label": y.tolist()})


def arguments(folder, **changed):
    quiet = {
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder), **(quiet | changed))


def fine_tuned(model, rows, folder, *, loss=None, eval_dataset=None, data_collator=None, **changed):
    trainer = Trainer(
        model,
        arguments(folder, **changed),
        train_dataset=rows,
        eval_dataset=eval_dataset,
        data_collator=data_collator,
        compute_loss_func=loss or SoftTargetLoss(),
    )
    trainer.train()
    return trainer


def weights_of(model):
    return [value.detach().clone() for value in model.parameters()]
