"""One of two processes that take one step together; its weights are written to the folder that is named."""

import os
import sys

import torch

from lowchurn.integrations.huggingface import soften
from tests.integrations.tiny import fine_tuned, sentences, text_model, weights_of

if __name__ == "__main__":
    folder = sys.argv[1]
    rows = soften(sentences(8), text_model(0), 0.5)
    trainer = fine_tuned(
        text_model(1), rows, folder, max_steps=1, optim="sgd", learning_rate=0.1, max_grad_norm=0,
        per_device_train_batch_size=2, gradient_accumulation_steps=2, ddp_backend="gloo",
    )  # fmt: skip
    torch.save(weights_of(trainer.model), os.path.join(folder, f"{os.environ['RANK']}.pt"))
