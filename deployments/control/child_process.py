"""Compute in a child process, so that the requests keep the interpreter."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from deployments.errors import ChildError
from policy.errors import InfeasibleError


async def call(
    module: str, message: dict[str, Any], time_limit_s: float | None = None
) -> dict[str, Any]:
    """Run a module, give it `message` as JSON, and return the JSON that it writes.

    Cancelling the call kills the process.

    Parameters
    ----------
    module : str
        Run as ``python -m``.
    message : dict
        In JSON's types.
    time_limit_s : float, optional
        The process is killed after this.

    Raises
    ------
    InfeasibleError
        The answer has an ``error``; the process would give it again.
    ChildError
        The process did not start, died, took too long, or wrote something else. It may do better
        next time.
    """
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise ChildError(f"the process did not start: {error}") from error
    reply = asyncio.create_task(
        asyncio.to_thread(process.communicate, json.dumps(message).encode())
    )
    try:
        async with asyncio.timeout(time_limit_s):
            output, errors = await asyncio.shield(reply)
    except TimeoutError:
        process.kill()
        await reply
        raise ChildError(f"the process took longer than {time_limit_s:g} s") from None
    except asyncio.CancelledError:
        process.kill()
        await reply
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ChildError(lines[-1] if lines else f"the process ended ({process.returncode})")
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise ChildError(f"the process wrote no JSON: {error}") from error
    if "error" in result:
        raise InfeasibleError(result["error"])
    return result
