"""Compute in a child process, so that the requests keep the interpreter.

A child has a low priority. In a container with a CPU quota that does not help: what the child takes
of the quota, the requests lose. So once the quota has been used up, the child takes turns with
pauses, and gets a part of the quota only.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

from deployments.control.cpu_quota import CpuQuota, cpu_quota
from deployments.errors import ChildError
from policy.errors import InfeasibleError

#: What a child may take of a quota that has been used up, and how long a turn and a pause take.
QUOTA_SHARE, _TURN_S = 0.2, 0.1


async def call(
    module: str,
    message: dict[str, Any],
    time_limit_s: float | None = None,
    quota: CpuQuota | None = None,
) -> dict[str, Any]:
    """Run a module, give it `message` as JSON, and return the JSON that it writes.

    Cancelling the call kills the process.

    Parameters
    ----------
    module : str
        Run by `deployments.control.child`.
    message : dict
        In JSON's types.
    time_limit_s : float, optional
        The process is killed after this; with pauses, after so much longer.
    quota : CpuQuota, optional
        By default, that of this process, if it has one.

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
            [sys.executable, "-m", "deployments.control.child", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise ChildError(f"the process did not start: {error}") from error
    reply = asyncio.create_task(
        asyncio.to_thread(process.communicate, json.dumps(message).encode())
    )
    quota = quota or cpu_quota()
    pacing: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(time_limit_s) as limit:
            if quota is not None:
                pacing = asyncio.create_task(_pace(process, quota, limit))
            output, errors = await asyncio.shield(reply)
    except TimeoutError:
        process.kill()
        await reply
        raise ChildError(f"the process took longer than {time_limit_s:g} s") from None
    except asyncio.CancelledError:
        process.kill()
        await reply
        raise
    finally:
        if pacing is not None:
            pacing.cancel()
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


async def _pace(process: subprocess.Popen[bytes], quota: CpuQuota, limit: asyncio.Timeout) -> None:
    """Pause the process again and again, once the quota has been used up; until cancelled."""
    share = QUOTA_SHARE * quota.cores
    if share >= 1:
        return
    throttled = quota.throttled()
    while quota.throttled() == throttled or not _gives_way(process.pid):
        await asyncio.sleep(_TURN_S)
    when_s, now_s = limit.when(), asyncio.get_running_loop().time()
    if when_s is not None:
        limit.reschedule(now_s + (when_s - now_s) / share)
    while True:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep((1 - share) * _TURN_S)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(share * _TURN_S)


def _gives_way(child: int) -> bool:
    """Return whether a child has come as far as to end with this process, even while paused."""
    try:
        return os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, 0)
    except ProcessLookupError:
        return False
