"""An example request for a model, in readable form."""

from typing import Any

from deployments.models.base import Model


def example_request(model: Model) -> dict[str, Any]:
    """Return a valid inference request of one row, ready for JSON."""
    example = model.example(1)
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(example[spec.name].shape),
            "data": [_readable(value) for value in example[spec.name].ravel().tolist()],
        }
        for spec in model.inputs
    ]
    return {"inputs": inputs}


def _readable(value: Any) -> Any:
    """Return an element in its most readable JSON form: 7 instead of 7.0, text as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
