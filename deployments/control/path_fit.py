"""Follow what requests cost the balancer, for the load that a replica takes under its SLA."""

from policy.path import PathCosts
from policy.response_time.way import BalancerLoad


class PathFit:
    """Decide when the path of the profile is no longer that which is measured.

    Parameters
    ----------
    path : PathCosts or None
        That of the profile; None if it is not known.

    Attributes
    ----------
    path : PathCosts or None
        The one that the model uses; None until it matters.
    """

    #: Relative error that is tolerated.
    TOLERANCE = 0.25
    #: Below this utilization a balancer is not judged: each request costs a balancer that sleeps
    #: between them more, and hardly any waits for another.
    LEAST_JUDGED = 0.1
    #: Checks that pass after the n-th change before the next are n times the first number, at most
    #: the second: after each the load-lateness curve is solved, which costs a second of a core.
    REST_AFTER_CHANGE, LONGEST_REST = 10, 200

    def __init__(self, path: PathCosts | None = None) -> None:
        self.path = path
        self._was_off = False
        self._changes = 0
        self._rests = 0

    def revise(
        self,
        balancer: BalancerLoad | None,
        arrival_rate_per_s: float,
        *,
        solving_anyway: bool = False,
    ) -> bool:
        """Take in what is measured; return whether `path` changed.

        Two checks in a row must find it wrong, unless it costs nothing to change it.

        Parameters
        ----------
        balancer : BalancerLoad or None
            None: not known.
        arrival_rate_per_s : float
            At which it was measured. The balancer's load for others is taken to rise and fall with
            it.
        solving_anyway : bool
            Whether the load-lateness curve is solved anew for another reason.
        """
        self._rests = max(0, self._rests - 1)
        if balancer is None or not arrival_rate_per_s > 0:
            return False
        if self._rests and not solving_anyway:
            return False
        if balancer.utilization < self.LEAST_JUDGED:
            self._was_off = False
            return False
        measured = _path(balancer, arrival_rate_per_s)
        is_off = self.path is None or not (
            self._is_near(measured.balancer_ms, self.path.balancer_ms)
            and self._is_near(measured.capacity_per_s, self.path.capacity_per_s)
        )
        if not is_off or not (self._was_off or solving_anyway):
            self._was_off = is_off
            return False
        self._was_off = False
        if not solving_anyway:
            self._changes += 1
            self._rests = min(self._changes * self.REST_AFTER_CHANGE, self.LONGEST_REST)
        self.path = measured
        return True

    def _is_near(self, measured: float, believed: float) -> bool:
        most = 1 + self.TOLERANCE
        return believed / most <= measured <= believed * most


def _path(balancer: BalancerLoad, arrival_rate_per_s: float) -> PathCosts:
    """Return the costs to two digits: replicas that measure nearly the same share solutions."""
    path = PathCosts.from_utilization(balancer.request_ms, balancer.utilization, arrival_rate_per_s)
    return PathCosts(float(f"{path.balancer_ms:.2g}"), float(f"{path.replicas:.2g}"))
