"""Run a stage's code on the items of a batch, and split the result."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from deployments.errors import ModelError, RowsError, StartError
from deployments.models.base import Model
from deployments.models.loading import check_weights, load_model, load_onto
from deployments.models.outputs import fit_output, wrong_shape
from deployments.models.weights import WeightsLoader
from deployments.pipelines.core.errors import ResultError
from deployments.pipelines.core.items import RETRY, BatchFailure, ItemFailure
from deployments.pipelines.core.steps import Stage
from policy.errors import InvalidInputError, SojournError

Predictor = Callable[[list[Any]], "list[Any] | BatchFailure"]


def construct(stage: Stage) -> tuple[Predictor | None, str | None]:
    try:
        return make_predictor(stage), None
    except SojournError as error:
        return None, str(error)
    except BaseException as error:  # SystemExit is a failure, too
        return None, f"{type(error).__name__}: {error}"


def make_predictor(stage: Stage) -> Predictor:
    """Construct a stage's code, or raise `InvalidInputError` or `StartError`."""
    weights = WeightsLoader(stage.weights)
    try:
        with weights.sharing(stage.share):
            code = _construct(stage, weights)
    except SojournError:
        raise
    except Exception as error:
        raise StartError(f"{type(error).__name__}: {error}") from error
    if isinstance(code, Model):
        return _list_predictor(partial(_forward, code))
    predict = getattr(code, "predict", code)
    if not callable(predict):
        raise InvalidInputError(f"{stage.code!r} has no method predict, and cannot be called")
    if stage.batch_size is not None:
        return _list_predictor(lambda items: predict(own(items)))
    return _item_predictor(predict)


def _construct(stage: Stage, weights: WeightsLoader) -> Any:
    code = import_object(stage.code) if isinstance(stage.code, str) else stage.code
    if not isinstance(code, type) or not issubclass(code, Model):
        for name in ("weights", "device"):
            if getattr(stage, name) != getattr(Stage, name):
                raise InvalidInputError(f"{name}: only a sojourn.Model takes it")
        if isinstance(code, type):
            return code(**stage.options)
        if stage.options:
            raise InvalidInputError("options: only a class takes them")
        return code
    check_weights(code, code.__qualname__, stage.weights)
    if isinstance(stage.code, str):
        return load_model(stage.code, stage.options, stage.device, weights)
    model = code(**stage.options)
    load_onto(model, stage.device, weights)
    return model


def import_object(path: str) -> Any:
    """Return the object at a path ``package.module:name``, or raise `InvalidInputError`."""
    if ":" not in path:
        raise InvalidInputError(f"{path!r}: must be package.module:name")
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(f"{path!r}: {error}") from error


def _item_predictor(predict: Callable[[Any], Any]) -> Predictor:
    def run(items: list[Any]) -> list[Any]:
        outcomes: list[Any] = []
        for item in items:
            try:
                result = predict(own(item))
            except Exception as error:
                result = error
            outcomes.append(ItemFailure(result) if isinstance(result, Exception) else result)
        return outcomes

    return run


def _list_predictor(predict: Callable[[list[Any]], Sequence[Any]]) -> Predictor:
    def run(items: list[Any]) -> "list[Any] | BatchFailure":
        try:
            results = _check_results(predict(items), len(items))
        except RowsError as error:
            return _rows_failed(error, len(items))
        except Exception as error:
            return BatchFailure(error, whole=isinstance(error, ModelError))
        return [
            ItemFailure(result) if isinstance(result, Exception) else result for result in results
        ]

    return run


def _check_results(results: Any, wanted: int) -> list[Any]:
    if isinstance(results, str | bytes | Mapping) or not hasattr(results, "__len__"):
        raise ResultError(
            f"predict must return a list of {wanted} results, not a {type(results).__name__}"
        )
    if len(results) != wanted:
        raise ResultError(f"predict returned {len(results)} results for {wanted} items")
    return list(results)


def _rows_failed(error: RowsError, items: int) -> "list[Any] | BatchFailure":
    blamed = {row: cause for row, cause in error.errors.items() if 0 <= row < items}
    if not blamed:
        return BatchFailure(error)
    return [ItemFailure(blamed[row]) if row in blamed else RETRY for row in range(items)]


def _forward(model: Model, items: list[Any]) -> list[Any]:
    """Stack items, mappings from input names to one row each, for a model, and split the rows."""
    batch = {
        spec.name: np.stack([np.asarray(item[spec.name], spec.numpy_dtype) for item in items])
        for spec in model.inputs
    }
    outputs = model.forward(batch)
    wrong = wrong_shape(outputs, len(items), model.outputs)
    if wrong is not None:
        raise ModelError(f"the model returned wrong outputs: {wrong}")
    rows = range(len(items))
    try:
        fitted = {spec.name: fit_output(spec, outputs[spec.name]) for spec in model.outputs}
        return [{name: array[row] for name, array in fitted.items()} for row in rows]
    except ModelError:  # of some rows
        return [_fit_row(model, outputs, row) for row in rows]


def _fit_row(model: Model, outputs: Mapping[str, Any], row: int) -> Any:
    try:
        return {
            spec.name: fit_output(spec, np.asarray(outputs[spec.name])[row])[()]
            for spec in model.outputs
        }
    except ModelError as error:
        return error


def own(value: Any) -> Any:
    """Return a value with arrays of its own, so that a stage may write into its inputs."""
    kind = type(value)
    if kind is np.ndarray:
        return value.copy()
    if kind is dict:
        return {key: own(part) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind([own(part) for part in value])
    return value
