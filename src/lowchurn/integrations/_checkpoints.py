"""Checkpoints of Hugging Face: read without running code, averaged, and moved toward a base."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from lowchurn._extras import importing

Model: TypeAlias = Any  # a PreTrainedModel or a PeftModel
Rows: TypeAlias = Callable[[], Iterator[dict[str, Any]]]  # batches as the model takes them


def loaded(who: str, folder: str | Path, base: Any = None) -> Model:
    """Return the classifier in a folder; a LoRA adapter is merged into its base. No pickle is read."""
    with importing(who, "hf"):
        import transformers

    path = Path(folder)
    if (path / "adapter_config.json").exists():
        with importing(who, "hf"):
            from peft import PeftModel
        if base is None:
            raise ValueError(f"{who}: {str(path)!r} is an adapter without its base. Give the whole model.")
        return PeftModel.from_pretrained(own(who, base), path).merge_and_unload().eval()
    if not (path / "config.json").exists():
        raise ValueError(f"{who}: {str(path)!r} must be a folder that save_pretrained wrote, and has no config.json.")
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    if kind is None:
        raise ValueError(
            f"{who}: {str(path)!r} is a {config.architectures}, which transformers does not contain. Load the model "
            "and give it itself."
        )
    model, info = kind.from_pretrained(path, local_files_only=True, use_safetensors=True, output_loading_info=True)
    if absent := sorted({*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}):
        raise ValueError(
            f"{who}: {str(path)!r} has no weights for {absent[0]} and {len(absent) - 1} more, which would be drawn at "
            "random. Give the whole classifier."
        )
    return model.eval()


@dataclass(frozen=True, eq=False)
class Between:
    """A model, and the weights of the base and of the mean of some runs, between which its own are put."""

    model: Model
    old: dict[str, Any]
    new: dict[str, Any]
    runs: int

    def put(self, share: float, rows: Rows) -> None:
        """Give the model the weights ``(1 - share) * new + share * old``; statistics of batches are computed anew."""
        self.model.load_state_dict(
            {name: value if share == 1 else mixed(value, self.new[name], share) for name, value in self.old.items()}
        )
        if 0 < share < 1 or (share == 0 and self.runs > 1):
            renew_statistics(self.model, rows)


def mixed(old: Any, new: Any, share: float) -> Any:
    """Return a tensor between two, in double precision, of the dtype of the first; counters are the second's."""
    if not old.is_floating_point():
        return new
    return ((1 - share) * new.double() + share * old.double()).to(old.dtype)


def renew_statistics(model: Model, rows: Rows) -> None:
    """Compute the running statistics of batch normalisation anew, as ``torch.optim.swa_utils.update_bn`` does."""
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [one for one in model.modules() if isinstance(one, _BatchNorm) and one.running_mean is not None]
    if not norms:
        return
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in rows():
            model(**batch)
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum
        norm.eval()


def averaged(who: str, base: Any, runs: Sequence[Any]) -> Between:
    """Return the weights of the base and the mean of those of the runs, with a model to put weights into."""
    if isinstance(runs, str | Path) or not len(runs):
        raise ValueError(f"{who}: runs must be a list of at least one checkpoint, got {runs!r}.")
    model = own(who, base)
    old = {name: value.detach().clone() for name, value in model.state_dict().items()}
    mean: dict[str, Any] = {}
    for run in runs:
        state = own(who, run, base).state_dict()
        differ = [n for n in sorted({*old, *state}) if n not in old or n not in state or old[n].shape != state[n].shape]
        if differ:
            raise ValueError(
                f"{who}: a run has other layers than the base: {differ[0]} and {len(differ) - 1} more differ. Runs "
                "must be fine-tuned from the base, with the same classes."
            )
        for name, value in state.items():
            value = value.detach().to(old[name].device)
            part = value.double() / len(runs) if value.is_floating_point() else value
            mean[name] = mean[name] + part if name in mean and value.is_floating_point() else part
    return Between(model, old, mean, len(runs))


def own(who: str, source: Any, base: Any = None) -> Model:
    """Return a checkpoint as a model that may be changed; an adapter is merged into its base."""
    if isinstance(source, str | Path):
        return loaded(who, source, base)
    model = copy.deepcopy(source)
    return (model.merge_and_unload() if hasattr(model, "merge_and_unload") else model).eval()
