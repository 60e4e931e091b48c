"""What the replicas of a local run print, picked out of all that Ray says."""

import re

#: How Ray begins each line of a replica's output.
_REPLICA = re.compile(r"^\(ServeReplica:(?P<replica>\S+) pid=(?P<pid>\d+)\) ?(?P<text>.*)$")
#: How Serve begins a line of its log: level, time, deployment, replica, and the request's id.
_LOG_LINE = re.compile(r"^(?P<level>[A-Z]+) \d{4}-\d\d-\d\d [\d:,]+ \S+ \S+ (?:\S+ )?-- ")
_NOT_SHOWN = ("DEBUG", "INFO")
#: Replicas of a node take the first port that is free, and log an error for each that is not.
_PORT_IN_USE = re.compile(r"Failed to start \S+ server on port \d+: .*Retrying")


def shown(line: str) -> str | None:
    """Return what a user is shown of a line of Ray's output; None for nothing.

    That is what a replica prints and logs, but for its routine.
    """
    found = _REPLICA.match(line.rstrip())
    if found is None:
        return None
    text = found["text"]
    logged = _LOG_LINE.match(text)
    if logged is not None:
        if logged["level"] in _NOT_SHOWN:
            return None
        text = text[logged.end() :]
        if _PORT_IN_USE.match(text):
            return None
    return f"[replica {found['pid']}] {text}"
