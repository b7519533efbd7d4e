"""
Fine-tune a text classifier within a budget
===========================================

IMDB reviews, a small BERT made from a configuration, and a budget of 5 % changed
decisions. It needs the extra ``hf`` and the folder of data sets, and takes about a
minute on a CPU::

    python examples/huggingface_text.py --data ~/lowchurn-data
"""

import argparse
import os
from pathlib import Path

import pandas as pd
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from lowchurn.integrations.huggingface import (
    ChurnMetrics,
    SoftTargetLoss,
    audit_trainer,
    dial,
    probabilities,
    soften,
)


def tokenizer_of(texts):
    """Make a tokenizer of the words of these texts; yours comes with your model."""
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]"]
    words.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=4000, special_tokens=special)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )


def main(data, rows, out):
    set_seed(0)
    reviews = pd.read_parquet(Path(data) / "text" / "imdb.parquet")
    reviews = reviews.sample(2 * rows, random_state=0)
    tokenizer = tokenizer_of(reviews.text[:rows])
    collator = DataCollatorWithPadding(tokenizer)
    tokenised = Dataset.from_dict(
        {
            "label": reviews.label.astype(int).tolist(),
            "length": (reviews.text.str.len() // 1000).clip(upper=2).tolist(),
            **tokenizer(reviews.text.tolist(), truncation=True, max_length=64),
        }
    )
    old, new = tokenised.select(range(rows // 2)), tokenised.select(range(rows))
    test = tokenised.select(range(rows, 2 * rows))

    def train(model, dataset, **more):
        arguments = TrainingArguments(
            str(Path(out) / "trainer"),
            num_train_epochs=3,
            learning_rate=2e-3,
            per_device_train_batch_size=32,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model, arguments, train_dataset=dataset, data_collator=collator, **more
        )
        trainer.train()
        return trainer

    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=4000, max_position_embeddings=64, intermediate_size=64, **size
    )
    base = train(BertForSequenceClassification(config), old).model
    base.save_pretrained(Path(out) / "production")

    watch = ChurnMetrics(
        probabilities(base, test, collator=collator), labels=test["label"]
    )
    trainer = train(
        BertForSequenceClassification.from_pretrained(Path(out) / "production"),
        soften(new, base, lam=0.5, collator=collator),
        compute_loss_func=SoftTargetLoss(),
        compute_metrics=watch,
    )
    print(audit_trainer(trainer, test, base, by="length"))
    trainer.save_model(Path(out) / "run")

    served = dial(
        Path(out) / "production",
        [Path(out) / "run"],
        test,
        max_churn=0.05,
        collator=collator,
    )
    print(served)
    served.model.save_pretrained(Path(out) / "release")
    return served


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.environ.get("LOWCHURN_DATA"))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--out", default="out/huggingface_text")
    given = parser.parse_args()
    if not given.data:
        parser.error("give --data DIR or set LOWCHURN_DATA")
    main(given.data, given.rows, given.out)
