"""The data sets of the paper, one line each, with where they come from and where they lie.

A folder of data has this layout, and ``lowchurn data fetch`` writes it:

- ``tabular/NAME.parquet``: feature columns and one named ``target``; a column ``split`` (``train`` / ``test``) where
  there is a standard split;
- ``images/NAME.npz``: ``x_train``, ``y_train``, ``x_test``, ``y_test``; ``x`` in bytes, (n, h, w) or
  (n, h, w, channels); CelebA has ``attr_train``, ``attr_test`` (n, 40) and ``attr_names`` for its 40 tasks;
- ``text/NAME.parquet``: ``text``, ``label`` and ``split``;
- ``checksums.json``: the SHA-256 of each fetched file.

A file that is not in the list below works, too, by its name.
"""

from __future__ import annotations

from dataclasses import dataclass

# fmt: off
CELEBA_TASKS = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses",
    "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache",
    "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks",
    "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick",
    "Wearing_Necklace", "Wearing_Necktie", "Young",
)
# fmt: on


@dataclass(frozen=True)
class Spec:
    """One data set: its name, its group in the paper, its files and its source.

    ``files`` are places in the layout, without their ending; the first that is there is read. ``source`` is how it is
    fetched and from where: ``openml:NUMBER``, ``openml-images:NUMBER@TRAINING ROWS``, ``huggingface:REPOSITORY@SUBSET``
    or ``idx:REPOSITORY`` (files in MNIST's own format, from Hugging Face).
    """

    name: str
    group: str
    kind: str
    source: str
    files: tuple[str, ...] = ()
    task: str = ""

    def __post_init__(self) -> None:
        if not self.files:
            folder = {"tabular": "tabular", "image": "images", "text": "text"}.get(self.kind)
            object.__setattr__(self, "files", (f"{folder}/{self.name}",) if folder else ())


def _openml(name: str, number: int) -> Spec:
    return Spec(name, "openml", "tabular", f"openml:{number}")


def _image(name: str, group: str, source: str, *more_files: str) -> Spec:
    return Spec(name, group, "image", source, (f"images/{name}", *more_files))


DATASETS: tuple[Spec, ...] = (
    _openml("adult", 1590),
    _openml("bank", 1461),
    _openml("magic04", 1120),
    _openml("phonemes", 1489),
    _openml("electricity", 151),
    _openml("eeg", 1471),
    _openml("churn", 40701),
    _openml("elevators", 846),
    _openml("pollen", 871),
    _openml("phishing", 4534),
    _openml("wilt", 40983),
    _openml("letters", 6),
    _image("mnist", "mnist-variants", "huggingface:ylecun/mnist"),
    _image("fashion_mnist", "mnist-variants", "huggingface:zalando-datasets/fashion_mnist"),
    _image("emnist_balanced", "mnist-variants", "idx:Royc30ne/emnist-balanced"),
    _image("emnist_byclass", "mnist-variants", "idx:Royc30ne/emnist-byclass"),
    _image("emnist_bymerge", "mnist-variants", "idx:Royc30ne/emnist-bymerge"),
    _image("emnist_letters", "mnist-variants", "idx:Royc30ne/emnist-letters"),
    _image("emnist_digits", "mnist-variants", "idx:Royc30ne/emnist-digits"),
    _image("emnist_mnist", "mnist-variants", "huggingface:tanganke/emnist_mnist"),
    _image("kmnist", "mnist-variants", "huggingface:tanganke/kmnist", "images/kmnist_t10k"),
    _image("k49_mnist", "mnist-variants", "openml-images:41991@232365"),
    _image("svhn", "cifar", "huggingface:ufldl-stanford/svhn@cropped_digits"),
    _image("cifar10", "cifar", "huggingface:uoft-cs/cifar10"),
    _image("cifar100", "cifar", "huggingface:uoft-cs/cifar100"),
    *(
        Spec(
            f"celeba_{task.lower()}",
            "celeba",
            "image",
            "huggingface:flwrlabs/celeba",
            ("images/celeba", "images/celeba_10k"),
            task,
        )
        for task in CELEBA_TASKS
    ),
    Spec("imdb", "imdb", "text", "huggingface:stanfordnlp/imdb"),
    Spec("digits", "built-in", "built-in", "scikit-learn:load_digits"),
    Spec("digit_images", "built-in", "built-in", "scikit-learn:load_digits"),
    Spec("breast_cancer", "built-in", "built-in", "scikit-learn:load_breast_cancer"),
    Spec("wine", "built-in", "built-in", "scikit-learn:load_wine"),
)
BY_NAME = {spec.name: spec for spec in DATASETS}


def names_of(group: str) -> tuple[str, ...]:
    """The data sets of a group of the paper, in its order."""
    return tuple(spec.name for spec in DATASETS if spec.group == group)
