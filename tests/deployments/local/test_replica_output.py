"""Which lines of Ray's output a user is shown."""

import pytest

from deployments.local.replica_output import shown

STAMP = "2026-11-22 04:23:56,360 digits_Replica 1a2b3c"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("(ServeReplica:digits:Replica pid=12) loading\n", "loading"),
        (f"(ServeReplica:digits:Replica pid=12) ERROR {STAMP} -- it failed", "it failed"),
        (f"(ServeReplica:digits:Replica pid=12) WARNING {STAMP} 5d-6e -- odd", "odd"),
        ('(ServeReplica:digits:Replica pid=12)   File "cnn.py", line 3', '  File "cnn.py", line 3'),
        ("(ServeReplica:digits:Replica pid=12) ", ""),
    ],
)
def test_what_a_replica_prints_is_shown_without_rays_prefix(line: str, text: str) -> None:
    assert shown(line) == f"[replica 12] {text}"


@pytest.mark.parametrize(
    "line",
    [
        "starting",
        "",
        f"(ServeController pid=12) ERROR {STAMP} -- it failed",
        f"(ServeReplica:digits:Replica pid=12) INFO {STAMP} -- started",
        f"(ServeReplica:digits:Replica pid=12) WARNING {STAMP} -- Failed to start HTTP server on "
        "port 30000: [Errno 98] address already in use. Retrying...",
        "(raylet) Task ServeController.graceful_shutdown failed.",
    ],
)
def test_rays_own_routine_is_not(line: str) -> None:
    assert shown(line) is None
