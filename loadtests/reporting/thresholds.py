"""Pass criteria of a load test."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployments.config.user_config import SLAConfig


@dataclass(frozen=True)
class Thresholds:
    """The limits that a load test is judged by, in percent from 0 to 100; None: no limit.

    Without `min_right_percent`, every request must be answered or refused, and no answer may be
    wrong.
    """

    sla: SLAConfig | None = None
    min_right_percent: float | None = None
    max_refused_percent: float | None = None

    def misses(self, result: Mapping[str, Any]) -> list[str]:
        """Return the missed thresholds, one line for each; empty if the test passed.

        `result` is that of `loadtests.reporting.report.report`, judged by the same SLA.
        """
        requests = result["requests"]
        missed = []
        if self.sla is not None and not result["sla_met"]:
            within = 100 * (result["share_within_sla"] or 0.0)
            wanted = self.sla.objective.in_words()
            missed.append(f"the SLA was not met: {within:.2f}% in time, not {wanted}")
        if self.min_right_percent is None:
            right = result["ok"] + result["answered"]
            expected = right + result["wrong_answers"] + result["lost"] + result["refused"]
            for count, what in (
                (result["wrong_answers"], "wrong answers"),
                (result["lost"], "requests without any answer"),
                (requests - expected, "errors other than refusals"),
            ):
                if count > 0:
                    missed.append(f"{what}: {count}, not 0")
        else:
            right = 100 * (result["ok"] + result["answered"]) / requests
            if right < self.min_right_percent:
                missed.append(f"right answers: {right:.2f}%, not {self.min_right_percent:g}%")
        if self.max_refused_percent is not None:
            refused = 100 * result["refused"] / requests
            if refused > self.max_refused_percent:
                missed.append(f"refused: {refused:.2f}%, more than {self.max_refused_percent:g}%")
        return missed
