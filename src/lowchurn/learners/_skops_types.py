"""What scikit-learn's own models consist of: types and functions in a skops file that are trusted without a word.

skops trusts the public estimators of scikit-learn, and not what they contain. Everything here is data, or a function of
arrays; none of it imports, opens, or calls anything but what the file had to be trusted for. Distributions of
``scipy.stats`` are not here: they compile text of the file.
"""

from __future__ import annotations

import functools
from types import FunctionType

import sklearn.metrics

# By module. A name that a version of a library does not have is never asked for.
OWN = {
    "functools": ["partial"],  # what it calls must be trusted as well
    "numpy": ["clip", "dtype", "mean", "median", "nan_to_num", "round"],
    "scipy._lib.array_api_compat.numpy._aliases": ["asarray"],
    "scipy.interpolate._bsplines": ["BSpline"],
    "scipy.sparse._csc": ["csc_array", "csc_matrix"],
    "scipy.sparse._csr": ["csr_array", "csr_matrix"],
    "sklearn.calibration": ["_CalibratedClassifier", "_SigmoidCalibration", "_TemperatureScaling"],
    "sklearn.compose._column_transformer": ["make_column_selector"],
    "sklearn.ensemble._hist_gradient_boosting.predictor": ["TreePredictor"],
    "sklearn.feature_selection._mutual_info": ["mutual_info_classif"],
    "sklearn.feature_selection._univariate_selection": ["chi2", "f_classif"],
    "sklearn.gaussian_process._gpc": ["_BinaryGaussianProcessClassifierLaplace"],
    "sklearn.gaussian_process.kernels": [
        *("CompoundKernel", "ConstantKernel", "DotProduct", "ExpSineSquared", "Exponentiation", "Matern"),
        *("PairwiseKernel", "Product", "RBF", "RationalQuadratic", "Sum", "WhiteKernel"),
    ],
    "sklearn.impute._iterative": ["_ImputerTriplet"],
    "sklearn.metrics._dist_metrics": [
        f"{name}Distance64"
        for name in ("Chebyshev", "Euclidean", "Hamming", "Mahalanobis", "Manhattan", "Minkowski", "SEuclidean")
    ],
    "sklearn.metrics._scorer": ["_CurveScorer", "_MultimetricScorer", "_PassthroughScorer", "_Scorer"],
    "sklearn.model_selection._split": [
        *("GroupKFold", "GroupShuffleSplit", "KFold", "LeaveOneGroupOut", "LeaveOneOut", "LeavePGroupsOut"),
        *("LeavePOut", "PredefinedSplit", "RepeatedKFold", "RepeatedStratifiedKFold", "ShuffleSplit"),
        *("StratifiedGroupKFold", "StratifiedKFold", "StratifiedShuffleSplit", "TimeSeriesSplit"),
    ],
    "sklearn.multiclass": ["_ConstantPredictor"],
    "sklearn.neighbors._ball_tree": ["BallTree"],
    "sklearn.neighbors._kd_tree": ["KDTree"],
    "sklearn.neural_network._stochastic_optimizers": ["AdamOptimizer", "SGDOptimizer"],
    "sklearn.tree._tree": ["Tree"],
    "sklearn.utils._bunch": ["Bunch"],
    "sklearn.utils._metadata_requests": ["MetadataRequest", "MethodMetadataRequest"],
    "sklearn.utils.validation": ["check_array"],
}
# Unfitted, these are parameters and nothing else.
UNFITTED_TYPES = (
    "lightgbm.sklearn.LGBMClassifier",
    "xgboost.sklearn.XGBClassifier",
    "catboost.core.CatBoostClassifier",
    "lowchurn.learners._torch.NetworkClassifier",
)


@functools.cache
def own_types() -> tuple[str, ...]:
    """Return the names of all types and functions that are trusted, the scores of ``sklearn.metrics`` among them."""
    found = (getattr(sklearn.metrics, name) for name in sklearn.metrics.__all__ if name.endswith(SCORES))
    scores = [f"{score.__module__}.{score.__name__}" for score in found if isinstance(score, FunctionType)]
    return (*(f"{module}.{name}" for module, names in OWN.items() for name in names), *scores)


SCORES = ("_score", "_loss", "_error", "matthews_corrcoef")
