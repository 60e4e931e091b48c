"""The configuration of access: `access` in a deployment's `user_config`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from deployments.config.validation import StrictModel

#: What a token may allow: the model itself, or what tells about the service (``/sojourn/…``).
Scope = Literal["inference", "operations"]


class TokenConfig(StrictModel):
    """One bearer token; `sojourn token` makes it and prints this."""

    #: Names the token in logs and metrics.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    #: SHA-256 of the token.
    hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    #: What the token allows.
    scopes: tuple[Scope, ...] = Field(default=("inference",), min_length=1)
    #: Requests per second to the service as a whole. None: no limit.
    requests_per_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Requests at once after a pause. None: those of one second, and at least 1.
    burst: float | None = Field(default=None, ge=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _burst_needs_a_rate(self) -> Self:
        if self.burst is not None and self.requests_per_s is None:
            raise ValueError("burst needs requests_per_s")
        return self

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token."""
        return bytes.fromhex(self.hash.partition(":")[2])


class AccessConfig(StrictModel):
    """Access to the service: without `tokens` for everyone, with an empty list for nobody."""

    #: None: everything is open to everyone.
    tokens: tuple[TokenConfig, ...] | None = None
    #: What needs no token all the same.
    anonymous: tuple[Scope, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        tokens = self.tokens or ()
        for what in ("name", "hash"):
            values = [getattr(token, what) for token in tokens]
            repeated = next((value for value in values if values.count(value) > 1), None)
            if repeated is not None:
                raise ValueError(f"two tokens have the {what} {repeated!r}")
        if self.anonymous and self.tokens is None:
            raise ValueError("anonymous needs tokens; without tokens everything is open")
        return self

    def closed(self, scope: Scope) -> bool:
        """Return whether `scope` needs a token."""
        return self.tokens is not None and scope not in self.anonymous
