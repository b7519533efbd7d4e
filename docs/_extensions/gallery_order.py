"""The order of the gallery: the common libraries first, then what is special, then audits. New examples come last."""

ORDER = ("lightgbm", "xgboost", "catboost", "pipeline", "torch", "table_base", "frontier", "audit_slices",
         "evaluation_runs", "releases")  # fmt: skip


class GalleryOrder:
    """A key to sort the files of the gallery by, as sphinx-gallery calls it."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name):
        stem = name.removeprefix("plot_").removesuffix(".py")
        return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)
