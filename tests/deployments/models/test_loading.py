import numpy as np
import pytest

from deployments.errors import StartError
from deployments.models.loading import load_model
from policy.errors import InvalidInputError

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

class InputLikeAnother(Doubler):
    inputs = (TensorSpec("x", "FP32", (-1,), length_of="x"),)

class LengthsNamedAsAnInput(Doubler):
    inputs = (TensorSpec("n", "FP32"), TensorSpec("x", "FP32", (-1,), pad=0, lengths="n"))

class PaddedOutput(Doubler):
    outputs = (TensorSpec("y", "FP32", (-1,), pad=0),)

class LongAsNothing(Doubler):
    outputs = (TensorSpec("y", "FP32", (-1,), length_of="x"),)
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "user_model_of_test_loading.py").write_text(USER_MODEL)
    (tmp_path / "user_model_without_dependency.py").write_text("import no_such_dependency\n")
    (tmp_path / "user_model_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "user_model_of_test_loading"


def test_a_users_model_is_imported_constructed_and_loaded(user_module):
    model = load_model(f"{user_module}:Doubler", {"factor": 3}, "cpu")
    answer = model.forward({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(answer["y"], np.full((2, 3), 3, np.float32))
    assert model.profile() is None
    assert model.energy_meter() is None


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("nowhere", {}, "must be package.module:Class, or one of digits, emulated"),
        (":Class", {}, "must be package.module:Class"),
        ("no_such_module_here:Model", {}, "no module named 'no_such_module_here'"),
        ("user_model_without_dependency:M", {}, "No module named 'no_such_dependency'"),
        ("user_model_broken:M", {}, "import failed: ZeroDivisionError"),
        ("user_model_of_test_loading:Nothing", {}, "has no 'Nothing'"),
        ("user_model_of_test_loading:TensorSpec", {}, "not a subclass of sojourn.Model"),
        ("user_model_of_test_loading:NoForward", {}, "NoForward does not define forward"),
        ("user_model_of_test_loading:NoSpecs", {}, "inputs must be a non-empty tuple"),
        ("user_model_of_test_loading:Twice", {}, "outputs contain two tensors with the same name"),
        ("user_model_of_test_loading:InputLikeAnother", {}, "'x': length_of is for outputs"),
        ("user_model_of_test_loading:LengthsNamedAsAnInput", {}, "must be another name .* not 'n'"),
        ("user_model_of_test_loading:PaddedOutput", {}, "output 'y': pad is for inputs"),
        ("user_model_of_test_loading:LongAsNothing", {}, "must be an input with pad, not 'x'"),
        ("user_model_of_test_loading:Doubler", {"facto": 1}, "'facto'; the options are: factor"),
        ("emulated", {}, "'profile'; the options are: profile, scale"),
    ],
)
def test_an_invalid_model_is_rejected_in_one_line(user_module, path, options, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_model(path, options, "cpu")
    assert "\n" not in str(caught.value)


def test_an_error_in_load_keeps_its_message_and_traceback(user_module):
    with pytest.raises(StartError, match=r"OSError: weights.bin: truncated at byte 17") as caught:
        load_model(f"{user_module}:BadWeights", {}, "cpu")
    assert isinstance(caught.value.__cause__, OSError)
