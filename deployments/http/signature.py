"""What requests to a model may say: its tensors, how many rows, and which priorities."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from numpy.typing import NDArray

from deployments.http.datatypes import codec_of
from deployments.http.json_guard import JsonGuard, body_limit_bytes
from deployments.http.priorities import DEFAULT_PRIORITIES, PriorityLevels
from deployments.http.tensors import TensorCodec
from deployments.models.base import TensorSpec

Tensors = Mapping[str, NDArray[Any]]


class RequestedOutput(NamedTuple):
    """One output that the client wants, and whether it wants raw bytes instead of JSON."""

    codec: TensorCodec
    binary: bool


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model.

    Attributes
    ----------
    inputs, outputs : tuple of TensorSpec
    max_rows : int
        The most rows that one request may have.
    priorities : PriorityLevels
        The priorities that requests may have.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int
    priorities: PriorityLevels = DEFAULT_PRIORITIES

    @cached_property
    def json_guard(self) -> JsonGuard:
        """Tells JSON that is no valid request, before it is parsed."""
        return JsonGuard(self.inputs, self.max_rows)

    @cached_property
    def has_texts(self) -> bool:
        """True if an input is of type BYTES, whose values have any length."""
        return any(spec.datatype == "BYTES" for spec in self.inputs)

    @property
    def body_limit_bytes(self) -> int:
        """The size of body that must be allowed, in bytes; see `deployments.http.json_guard`."""
        return body_limit_bytes(self.inputs, self.max_rows)

    @cached_property
    def input_codecs(self) -> Mapping[str, TensorCodec]:
        """The codec of each input, by name."""
        return {spec.name: codec_of(spec) for spec in self.inputs}

    @cached_property
    def output_codecs(self) -> Mapping[str, TensorCodec]:
        """The codec of each output, by name."""
        return {spec.name: codec_of(spec) for spec in self.outputs}

    @cached_property
    def all_outputs(self) -> Mapping[bool, tuple[RequestedOutput, ...]]:
        """All outputs, as raw bytes (True) or JSON (False); for requests that name none."""
        codecs = self.output_codecs.values()
        return {
            binary: tuple(RequestedOutput(codec, binary) for codec in codecs)
            for binary in (False, True)
        }
