import joblib
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC

from deployments.models.base import Model
from policy.errors import InvalidInputError
from sojourn.models import OnnxModel, SklearnModel, TransformersModel

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "word")
TEXTS = ("good", "bad word", "good good bad", "")


def save_graph(path, node, kind, shape, result):
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, result)],
        [helper.make_tensor("w", TensorProto.FLOAT, WEIGHTS.shape, WEIGHTS.ravel())],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def linear(path, batch="batch"):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return save_graph(path, node, TensorProto.FLOAT, [batch, 4], [batch, 3])


def loaded(model: Model):
    model.load("cpu")
    return model


def rows_of(model: Model, batch):
    """Compute a batch, check its outputs' types and shapes, and return their rows."""
    found = model.forward(batch)
    size = len(next(iter(batch.values())))
    for spec in model.outputs:
        assert found[spec.name].dtype == spec.numpy_dtype
        assert len(found[spec.name]) == size
        assert spec.fits(found[spec.name].shape[1:])
    return {name: list(values) for name, values in found.items()}


def test_a_graph_of_onnx_is_computed_if_it_can_batch(tmp_path):
    path = linear(tmp_path / "linear.onnx")
    model = loaded(OnnxModel(str(path)))
    assert [(s.name, s.datatype, s.shape) for s in model.inputs] == [("x", "FP32", (4,))]
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_allclose(rows_of(model, {"x": x})["y"], x @ WEIGHTS, rtol=1e-5, atol=1e-5)
    fixed = linear(tmp_path / "one.onnx", batch=1)
    with pytest.raises(InvalidInputError, match="dynamic first dimension"):
        OnnxModel(str(fixed)).load("cpu")


def test_texts_and_free_lengths_of_onnx(tmp_path):
    path = save_graph(
        tmp_path / "same.onnx",
        helper.make_node("Identity", ["x"], ["y"]),
        TensorProto.STRING,
        ["batch", "words"],
        ["batch", "words"],
    )
    model = loaded(OnnxModel(str(path), max_dim=9))
    (spec,) = model.inputs
    assert (spec.datatype, spec.shape, spec.max_dim) == ("BYTES", (-1,), 9)
    texts = np.array([["ä".encode(), b"b"], [b"", b"c"]], dtype=object)
    np.testing.assert_array_equal(rows_of(model, {"x": texts})["y"], texts)


def test_classifiers_and_regressors_of_scikit_learn(tmp_path):
    features, labels = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    estimators = {
        "numbers": LogisticRegression(max_iter=1000).fit(features, labels),
        "names": LogisticRegression(max_iter=1000).fit(features, names),
        "labels alone": LinearSVC(dual=False).fit(features, labels),
        "value": LinearRegression().fit(*load_diabetes(return_X_y=True)),
    }
    for name, estimator in estimators.items():
        path = tmp_path / f"{name}.joblib"
        joblib.dump(estimator, path)
        model = loaded(SklearnModel(str(path), trust=True))
        batch = features if name != "value" else load_diabetes().data
        found = rows_of(model, {"features": batch})
        expected = estimator.predict(batch)
        if name == "names":
            expected = np.array([label.encode() for label in expected], dtype=object)
        answer = "value" if name == "value" else "label"
        np.testing.assert_array_equal(found[answer], expected)
        assert ("probabilities" in found) == hasattr(estimator, "predict_proba")


def test_a_joblib_file_is_read_only_if_it_is_trusted(tmp_path):
    path = tmp_path / "m.joblib"
    joblib.dump(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), path)
    with pytest.raises(InvalidInputError, match="--trust"):
        SklearnModel(str(path))
    with pytest.raises(InvalidInputError, match="there is no"):
        SklearnModel(str(tmp_path / "other.joblib"), trust=True)


@pytest.mark.slow
def test_a_classifier_of_transformers(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path / "saved")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        id2label={0: "NEGATIVE", 1: "POSITIVE"},
    )
    network = BertForSequenceClassification(config).eval()
    network.save_pretrained(tmp_path / "saved")
    model = loaded(TransformersModel(str(tmp_path / "saved"), max_tokens=16))
    texts = np.array([text.encode() for text in TEXTS], dtype=object)
    found = rows_of(model, {"text": texts})
    for index, text in enumerate(TEXTS):
        with torch.inference_mode():
            logits = network(**tokenizer(text, return_tensors="pt")).logits
        expected = logits.softmax(-1)[0].numpy()
        np.testing.assert_allclose(found["scores"][index], expected, atol=1e-6)
        assert found["label"][index] == [b"NEGATIVE", b"POSITIVE"][expected.argmax()]
    assert len(model.forward(model.example(3))["scores"]) == 3
