"""Models that need no code: files of ONNX, of scikit-learn, and folders of Hugging Face.

A config names them as any class, with the file as an option::

    model:
      import_path: sojourn.models:OnnxModel
      options: {path: resnet50.onnx}

`sojourn serve resnet50.onnx --sla 20ms@99` does the same without a config. Inputs and outputs
follow from the file. Each class imports its library when it loads.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec
from policy.errors import InvalidInputError

Batch = Mapping[str, NDArray[Any]]

#: ONNX Runtime's names of the tensor types that the Open Inference Protocol has.
_ONNX_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


class _FileModel(Model):
    """A model in a file or a folder, relative to where the service is started."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not self._path.exists():
            raise InvalidInputError(f"path: there is no {path}")


class OnnxModel(_FileModel):
    """An ONNX graph, run by ONNX Runtime; its first dimension must be that of the batch.

    Another dimension of free length may be up to `max_dim` long.
    """

    def __init__(self, path: str, max_dim: int = 512) -> None:
        super().__init__(path)
        self._max_dim = max_dim

    def load(self, device: str) -> None:
        """Read the graph."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Else a session has a thread for each core of the machine.
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        if device == "cuda":
            providers.insert(0, "CUDAExecutionProvider")
        self._session = onnxruntime.InferenceSession(str(self._path), options, providers)
        self.inputs = tuple(self._spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(self._spec(node) for node in self._session.get_outputs())
        self._computed = self.outputs  # a subclass may have others
        self._texts = {spec.name for spec in self.inputs if spec.datatype == "BYTES"}

    def _spec(self, node: Any) -> TensorSpec:
        where = f"{self._path}: {node.name}"
        if node.type not in _ONNX_TYPES:
            raise InvalidInputError(f"{where} is of type {node.type}, which requests cannot carry")
        if not node.shape or isinstance(node.shape[0], int):
            raise InvalidInputError(
                f"{where} has the shape {node.shape}; export the model with a dynamic first "
                "dimension, so that it can batch"
            )
        shape = tuple(size if isinstance(size, int) else -1 for size in node.shape[1:])
        # What the graph computes is its own affair.
        return TensorSpec(
            node.name, _ONNX_TYPES[node.type], shape, allow_nan=True, max_dim=self._max_dim
        )

    def forward(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Run the graph."""
        feeds = {
            name: _decoded(rows) if name in self._texts else rows for name, rows in batch.items()
        }
        found = self._session.run([spec.name for spec in self._computed], feeds)
        return {
            spec.name: _encoded(rows) if spec.datatype == "BYTES" else rows
            for spec, rows in zip(self._computed, found, strict=True)
        }


class SklearnModel(_FileModel):
    """An estimator of scikit-learn, saved by joblib.

    Its input is ``features``. A classifier answers with ``label`` and, if it has them,
    ``probabilities`` in the order of ``classes_``; a regressor with ``value``. Reading a joblib
    file runs the code in it, so `trust` must be true.
    """

    def __init__(self, path: str, trust: bool = False) -> None:
        super().__init__(path)
        if not trust:
            raise InvalidInputError(
                f"{path}: reading a joblib file runs the code in it; if you trust it, add --trust, "
                "or trust: true to the model's options"
            )

    def load(self, device: str) -> None:
        """Read the estimator."""
        import joblib
        from sklearn.base import is_classifier

        self._estimator = joblib.load(self._path)
        if not hasattr(self._estimator, "n_features_in_"):
            raise InvalidInputError(f"{self._path}: is no fitted estimator of scikit-learn")
        self.inputs = (TensorSpec("features", "FP64", (int(self._estimator.n_features_in_),)),)
        self._classifies = is_classifier(self._estimator)
        if not self._classifies:
            self.outputs = (TensorSpec("value", "FP64"),)
            return
        kind = np.asarray(self._estimator.classes_).dtype.kind
        self.outputs = (TensorSpec("label", {"i": "INT64", "f": "FP64"}.get(kind, "BYTES")),)
        if hasattr(self._estimator, "predict_proba"):
            classes = len(self._estimator.classes_)
            self.outputs += (TensorSpec("probabilities", "FP64", (classes,)),)

    def forward(self, batch: Batch) -> dict[str, NDArray[Any]]:
        features = batch["features"]
        if not self._classifies:
            return {"value": self._estimator.predict(features)}
        if len(self.outputs) == 1:
            labels, found = self._estimator.predict(features), {}
        else:
            found = {"probabilities": self._estimator.predict_proba(features)}
            labels = self._estimator.classes_[found["probabilities"].argmax(axis=1)]
        texts = self.outputs[0].datatype == "BYTES"
        return {"label": _encoded(labels) if texts else labels, **found}


class TransformersModel(_FileModel):
    """A sequence classifier of Hugging Face, saved with its tokenizer by ``save_pretrained``.

    Its input is ``text``. It answers with ``label`` and with ``scores`` in the order of the
    config's ``id2label``. Texts longer than `max_tokens` are cut. Nothing is downloaded, and no
    code in the folder is run.
    """

    def __init__(self, path: str, max_tokens: int = 128) -> None:
        super().__init__(path)
        self._max_tokens = max_tokens

    def load(self, device: str) -> None:
        """Read the tokenizer and the weights."""
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        folder = str(self._path)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        network = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
        self._network = network.to(device).eval()
        self._device = device
        names = network.config.id2label
        self._labels = np.array([str(names[i]).encode() for i in range(len(names))], dtype=object)
        self.inputs = (TensorSpec("text", "BYTES"),)
        self.outputs = (
            TensorSpec("label", "BYTES"),
            TensorSpec("scores", "FP32", (len(self._labels),)),
        )

    def forward(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Tokenize and classify."""
        import torch

        tokens = self._tokenizer(
            _decoded(batch["text"]).tolist(),
            padding=True,
            truncation=True,
            max_length=self._max_tokens,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            scores = self._network(**tokens).logits.float().softmax(-1).cpu().numpy()
        return {"label": self._labels[scores.argmax(axis=1)], "scores": scores}

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return texts of the longest length, for the profile."""
        text = ("word " * self._max_tokens).encode()
        return {"text": np.full(batch_size, text, dtype=object)}


def _decoded(rows: NDArray[Any]) -> NDArray[Any]:
    """Return texts as str; bytes that are no UTF-8 are replaced."""
    return np.array([str(row, "utf-8", "replace") for row in rows.flat], object).reshape(rows.shape)


def _encoded(rows: NDArray[Any]) -> NDArray[Any]:
    encoded = [row if isinstance(row, bytes) else str(row).encode() for row in rows.flat]
    return np.array(encoded, object).reshape(rows.shape)
