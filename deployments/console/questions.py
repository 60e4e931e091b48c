"""A what-if question, as the page sends it."""

from pydantic import Field

from deployments.config.validation import StrictModel


class Scenario(StrictModel):
    """An SLA, a load, and what replicas and energy cost."""

    response_time_ms: float = Field(gt=0, le=1e7)
    percentile: float = Field(gt=1, lt=100)
    #: Requests per second, over all replicas.
    arrival_rate_per_s: float = Field(gt=0, le=1e7)
    burst_factor: float = Field(default=1.0, ge=1, le=1e3)
    #: As `policy.energy_weight` with a latency weight of 1. None: least energy under the SLA.
    energy_weight: float | None = Field(default=None, ge=0, le=1e6)
    #: Per kWh. None: the least replicas are chosen, and not those that cost least.
    energy_price: float | None = Field(default=None, ge=0, le=1e6)
    #: Per replica and hour, in the currency of the energy.
    replica_price: float = Field(default=0.0, ge=0, le=1e6)


class Question(StrictModel):
    """What is, and what might be."""

    now: Scenario
    then: Scenario
    #: Name of the model; None: the deployment's own.
    model: str | None = None
