"""Compute in a child process, so that the requests keep the interpreter."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from policy.errors import InfeasibleError


async def call(module: str, message: dict[str, Any]) -> dict[str, Any]:
    """Run a module, give it `message` as JSON, and return the JSON that it writes.

    Cancelling the call kills the process.

    Raises
    ------
    InfeasibleError
        The process failed, or its answer has an ``error``.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    reply = asyncio.create_task(
        asyncio.to_thread(process.communicate, json.dumps(message).encode())
    )
    try:
        output, errors = await asyncio.shield(reply)
    except asyncio.CancelledError:
        process.kill()
        await reply
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise InfeasibleError(f"solving the policy failed: {lines[-1]}")
    result: dict[str, Any] = json.loads(output)
    if "error" in result:
        raise InfeasibleError(result["error"])
    return result
