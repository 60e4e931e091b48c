"""The child process of `deployments.control.table_solver`.

It is asked with a solve request and the cache folder, and answers with the solution. It stores the
solution in that folder as well; if it cannot, ``not_stored`` says why.
"""

from pathlib import Path
from typing import Any

from deployments.control.child import answer_questions
from deployments.control.solve_cache import SolveCache
from deployments.control.solve_request import SolveRequest, SolveResult
from policy.errors import InfeasibleError, InvalidInputError
from policy.load_lateness import LoadLatenessCurve, solve_load_lateness_curve
from policy.table_solving import solve_table


def solve_curve(request: SolveRequest) -> LoadLatenessCurve | None:
    """Return the load-lateness curve of `request`; None if no arrival rate meets the SLA."""
    try:
        return solve_load_lateness_curve(
            request.profile,
            request.sla,
            request.waiting_room,
            admit_within_ms=request.admit_within_ms,
            search_sizes=request.search_sizes,
        )
    except InfeasibleError:
        return None


def solve_and_store(request: SolveRequest, cache: SolveCache) -> dict[str, Any]:
    """Return the solution of `request` in JSON's types; solve the table unless it is stored.

    Raises
    ------
    SojournError
        The table cannot be solved.
    """
    curve, stored = solve_curve(request), None
    try:
        table = stored = cache.load_table(request)
    except InvalidInputError:
        table = solve_table(request.profile, request.objective)
    answer = SolveResult(table, curve).to_dict()
    try:
        cache.store_curve(request, curve)
        if stored is None:
            cache.store_table(request, table)
    except OSError as error:
        answer["not_stored"] = str(error)
    return answer


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    return solve_and_store(SolveRequest.from_dict(message), SolveCache(Path(message["folder"])))


if __name__ == "__main__":
    answer_questions(_answer)
