"""The child process of `deployments.control.table_solver`.

It reads a solve request and the cache folder as JSON from standard input, stores the results in
that folder, and writes ``{}`` or ``{"error": message}`` to standard output.
"""

import json
import os
import sys
from pathlib import Path

from deployments.control.solve_request import SolveCache, SolveRequest
from deployments.threads import limit_threads
from policy.errors import InfeasibleError, SojournError
from policy.load_lateness import solve_load_lateness_curve
from policy.table import solve_table

#: Low CPU priority: the requests on this machine come first.
_NICENESS = 10


def solve_and_store(request: SolveRequest, cache: SolveCache) -> None:
    """Solve the curve, and the table unless it is stored, and store both.

    Raises
    ------
    SojournError
        The table cannot be solved.
    """
    try:
        curve = solve_load_lateness_curve(
            request.profile,
            request.sla,
            request.waiting_room,
            search_sizes=request.search_sizes,
        )
    except InfeasibleError:
        curve = None
    cache.store_curve(request, curve)
    if not cache.has_table(request):
        cache.store_table(request, solve_table(request.profile, request.objective))


def main() -> None:
    """Solve the request on standard input."""
    os.nice(_NICENESS)
    limit_threads(1)
    message = json.load(sys.stdin)
    result = {}
    try:
        solve_and_store(SolveRequest.from_dict(message), SolveCache(Path(message["folder"])))
    except SojournError as error:
        result["error"] = str(error)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
