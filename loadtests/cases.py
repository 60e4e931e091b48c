"""Requests with known answers for the models that come with Sojourn.

The answers of the digits model are the model's own, computed here from the same weights: a load
test then sees whether each client got the answer to its own image, and not whether the model
is clever.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.answers import read_cases, write_cases
from loadtests.service import model_metadata
from policy.errors import InvalidInputError, SojournError

ECHOED_VALUES = 4096


def digits_cases() -> list[dict[str, Any]]:
    """Make a request of every held-out digit, with the model's answer and the true label."""
    # torch and scikit-learn take seconds to import; only this model needs them.
    from deployments.models.digits import Digits
    from loadtests.digits import held_out

    images, labels = held_out()
    model = Digits()
    model.load("cpu")
    answers = model.forward({"image": images})
    return [
        {
            "inputs": [_tensor("image", "FP32", image[np.newaxis])],
            "outputs": [
                _tensor("label", "INT64", label[np.newaxis]),
                _tensor("probabilities", "FP32", probabilities[np.newaxis]),
            ],
            "truth": truth,
        }
        for image, label, probabilities, truth in zip(
            images, answers["label"], answers["probabilities"], labels.tolist(), strict=True
        )
    ]


def echo_cases() -> list[dict[str, Any]]:
    """Make requests to an emulated model: each value is its own answer, and no other's."""
    # Quarters are exact in 32 bits, so an echo is exact too.
    values = np.arange(ECHOED_VALUES, dtype=np.float32) / 4
    return [
        {
            "inputs": [_tensor("input", "FP32", value[np.newaxis, np.newaxis])],
            "outputs": [_tensor("output", "FP32", value[np.newaxis, np.newaxis])],
        }
        for value in values
    ]


_KNOWN: dict[tuple[tuple[str, str, tuple[int, ...]], ...], Callable[[], list[dict[str, Any]]]] = {
    (
        ("image", "FP32", (-1, 8, 8)),
        ("label", "INT64", (-1,)),
        ("probabilities", "FP32", (-1, 10)),
    ): digits_cases,
    (("input", "FP32", (-1, 1)), ("output", "FP32", (-1, 1))): echo_cases,
}


def prepare_cases(metadata: Mapping[str, Any], path: Path, own: Path | None = None) -> int:
    """Write the requests for a served model to a file.

    Parameters
    ----------
    metadata : mapping
        The model's, as ``GET /v2/models/NAME`` gives it.
    path : Path
        Where to; `loadtests.answers.read_cases` reads it.
    own : Path, optional
        A file of the user's own requests, taken as it is.

    Returns
    -------
    int
        How many there are.

    Raises
    ------
    InvalidInputError
        `own` is malformed, or there is none and the model is not one that comes with Sojourn.
    """
    if own is not None:
        number = len(read_cases(own))
        path.write_bytes(own.read_bytes())
        return number
    try:
        specs = tuple(
            (tensor["name"], tensor["datatype"], tuple(tensor["shape"]))
            for kind in ("inputs", "outputs")
            for tensor in metadata[kind]
        )
    except (KeyError, TypeError):
        raise InvalidInputError("the model's metadata names no inputs and outputs") from None
    make = _KNOWN.get(specs)
    if make is None:
        raise InvalidInputError(
            f"the inputs and outputs of model {metadata.get('name')!r} are neither those of the "
            "digits model nor of an emulated one: give requests and their answers with --cases FILE"
        )
    cases = make()
    write_cases(path, cases)
    return len(cases)


def _tensor(name: str, datatype: str, values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(values.shape),
        "data": values.ravel().tolist(),
    }


def main() -> str | None:
    """Write the requests for a model: ``python -m loadtests.cases URL MODEL FILE``."""
    url, model, path = sys.argv[1:]
    try:
        prepare_cases(model_metadata(url, model), Path(path))
    except SojournError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
