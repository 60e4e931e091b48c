"""What the console asks its planner: a what-if question, checked, and what is planned."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from deployments.config.validation import validate
from deployments.console.questions import Question
from deployments.errors import NotFoundError

_DELAYS = ("request_delay_ms", "reply_delay_ms", "retry_delay_ms", "retries")


class Planning(Protocol):
    """How the what-if of a service is answered.

    Attributes
    ----------
    process : str
        The module that plans, for `deployments.console.planner.PlannerProcess`.
    """

    process: str

    def message(self, content: Any) -> dict[str, Any]:
        """Return what the process is asked, for a question in JSON's types.

        Raises
        ------
        InvalidInputError
            The question is not valid; one line says why.
        RequestError
            There is no such model.
        """


class ModelPlanning:
    """Plans the replicas of a model, by the profile that this replica believes.

    Parameters
    ----------
    reports : callable
        Returns what ``GET /sojourn/policy`` tells of each model, the first model's first.
    """

    process = "deployments.console.planner_process"

    def __init__(self, reports: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._reports = reports

    def message(self, content: Any) -> dict[str, Any]:
        """Return the profile, the delays and the scenarios; see `Planning.message`."""
        question = validate(Question, content)
        report = self._report_of(question.model)
        settings = report["autoscaler"]
        return {
            "profile": report["profile"],
            "delays": {name: settings[name] for name in _DELAYS},
            "scenarios": question.model_dump(include={"now", "then"}),
        }

    def _report_of(self, model: str | None) -> Mapping[str, Any]:
        reports = self._reports()
        if model is None:
            return reports[0]
        for report in reports:
            if report["model"] == model:
                return report
        raise NotFoundError(f"there is no model {model!r:.100}")
