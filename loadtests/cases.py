"""The requests of a load test: the user's own, those of a bundled model, or random ones.

The expected answers of the digits model are computed here from the same weights. A load test checks
whether each client got the answer to its own image, not whether the model is accurate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.answers import read_cases, write_cases
from policy.errors import InvalidInputError

ECHOED_VALUES = 4096
RANDOM_CASES = 256
_INTEGERS = 100
#: Maximum length of a generated dimension.
_LONGEST = 16
_WORDS = (
    *("the", "a", "quick", "slow", "brown", "fox", "dog"),
    *("jumps", "sleeps", "over", "under", "lazy", "bright", "day"),
)


def digits_cases() -> list[dict[str, Any]]:
    """Return one request per held-out digit, with the model's answer."""
    # Importing torch and scikit-learn takes seconds, and only this model needs them.
    from deployments.models.digits import Digits
    from loadtests.digits import held_out

    images, _ = held_out()
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
        }
        for image, label, probabilities in zip(
            images, answers["label"], answers["probabilities"], strict=True
        )
    ]


def echo_cases() -> list[dict[str, Any]]:
    """Return requests to an emulated model, which echoes its input; all values differ."""
    # Quarters are exact in 32-bit floats, so the echo is exact too.
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
        The model's metadata, from ``GET /v2/models/NAME``.
    path : Path
        The file to write, for `loadtests.answers.read_cases`.
    own : Path, optional
        A file with the user's own requests, which is copied unchanged. Without it, the models that
        ship with Sojourn get requests with known answers, and others `RANDOM_CASES` random ones.

    Raises
    ------
    InvalidInputError
        `own` is malformed, or the metadata is.
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
        raise InvalidInputError("the model's metadata lists no inputs and outputs") from None
    make = _KNOWN.get(specs)
    cases = [*random_cases(metadata["inputs"], RANDOM_CASES)] if make is None else make()
    write_cases(path, cases)
    return len(cases)


def _tensor(name: str, datatype: str, values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(values.shape),
        "data": values.ravel().tolist(),
    }


def random_cases(
    inputs: Sequence[Mapping[str, Any]], number: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Generate requests of one row with random values and unknown answers.

    Fractions are from 0 to 1, whole numbers from 0 to 99 (unsigned 8 bits: to 255), and BYTES are
    some English words. A variable dimension, other than the first, is from 1 to 16, or to the
    model's maximum. `inputs` are those of the model's metadata: name, datatype, shape.
    """
    random = np.random.default_rng(seed)
    for _ in range(number):
        yield {"inputs": [_random_tensor(random, spec) for spec in inputs]}


def _random_tensor(random: np.random.Generator, spec: Mapping[str, Any]) -> dict[str, Any]:
    datatype = spec["datatype"]
    longest = min(_LONGEST, spec.get("parameters", {}).get("max_dim", _LONGEST))
    first, *rest = spec["shape"]
    shape = [
        1 if first < 0 else first,
        *(int(random.integers(1, longest + 1)) if length < 0 else length for length in rest),
    ]
    size = int(np.prod(shape))
    data: list[Any]
    if datatype == "BYTES":
        data = [" ".join(random.choice(_WORDS, random.integers(8, 24))) for _ in range(size)]
    elif datatype == "BOOL":
        data = (random.random(size) < 0.5).tolist()
    elif datatype.startswith(("INT", "UINT")):
        data = random.integers(256 if datatype == "UINT8" else _INTEGERS, size=size).tolist()
    else:
        # Few binary digits, which FP16 can hold.
        data = (random.integers(1025, size=size) / 1024).tolist()
    return {"name": spec["name"], "datatype": datatype, "shape": shape, "data": data}
