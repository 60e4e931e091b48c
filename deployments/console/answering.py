"""What the console's planner processes share."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from deployments.control.child import answer_questions
from policy.errors import SojournError

Plan = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


def answer_scenarios(plan: Plan) -> None:
    """Answer the questions on standard input until it ends; the latest answers are remembered.

    Parameters
    ----------
    plan : callable
        Returns the plan for what is asked about (`Planning.message` without its scenarios) and one
        of the scenarios. A `SojournError` becomes an answer that says why there is no plan.
    """

    @lru_cache(maxsize=256)
    def answer_one(about: str, scenario: str) -> dict[str, Any]:
        try:
            return plan(json.loads(about), json.loads(scenario))
        except SojournError as error:
            return {"error": str(error)}

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        scenarios = message.pop("scenarios")
        about = json.dumps(message)
        return {name: answer_one(about, json.dumps(asked)) for name, asked in scenarios.items()}

    answer_questions(answer)
