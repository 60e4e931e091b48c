"""The network delays between the load balancer and a replica."""

from dataclasses import dataclass

from policy.values import check_at_least

#: How many times HAProxy tries another replica after a refusal: RAND's retries.
RETRIES = 5


@dataclass(frozen=True)
class TryDelays:
    """The delays around one try: one attempt of the load balancer to place a request.

    The defaults fit HAProxy on one machine, where a refused try costs about 0.5 ms.

    Attributes
    ----------
    request_delay_ms : float
        From the balancer to the replica: d₁ of RAND (`autoscaler.sizing.rand`).
    reply_delay_ms : float
        From the replica back to the balancer: d₂ of RAND.
    retry_delay_ms : float
        From a refusal to the next try: Δ of RAND.
    retries : int or None
        Limit of the retries of a request. None: retry until the response time is over.
    """

    request_delay_ms: float = 0.25
    reply_delay_ms: float = 0.25
    retry_delay_ms: float = 0.0
    retries: int | None = None

    def __post_init__(self) -> None:
        for name in ("request_delay_ms", "reply_delay_ms", "retry_delay_ms"):
            check_at_least(0, name, getattr(self, name))
        if self.retries is not None:
            check_at_least(0, "retries", self.retries)

    @property
    def round_trip_ms(self) -> float:
        return self.request_delay_ms + self.reply_delay_ms

    @property
    def try_ms(self) -> float:
        """The time from one try to the next, in ms: d₁ + d₂ + Δ."""
        return self.request_delay_ms + self.reply_delay_ms + self.retry_delay_ms
