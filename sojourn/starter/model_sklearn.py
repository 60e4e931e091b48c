"""Your estimator of scikit-learn: its inputs follow from it, its answers are yours to name."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sojourn import Model, TensorSpec


class Classifier(Model):
    """Iris flowers, fitted at the start; to be replaced by your estimator."""

    outputs = (TensorSpec("label", "BYTES"), TensorSpec("probabilities", "FP64", (3,)))

    def load(self, device: str) -> None:
        """Fit the estimator; yours may come from a file, by ``joblib.load("model.joblib")``."""
        iris = load_iris()
        estimator = make_pipeline(StandardScaler(), LogisticRegression())
        self._estimator = estimator.fit(iris.data, iris.target)
        self._names = np.array([str(name).encode() for name in iris.target_names], object)
        self.inputs = (TensorSpec("features", "FP64", (estimator.n_features_in_,)),)

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute a batch; row i of each output answers row i of the inputs."""
        found = self._estimator.predict_proba(batch["features"])
        return {"label": self._names[found.argmax(axis=1)], "probabilities": found}
