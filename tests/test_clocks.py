import ast

import pytest

from tests.support.readme import ROOT

PACKAGES = ("policy", "autoscaler", "deployments", "sojourn")
#: Where the time of day is read, and what for.
ALLOWED = {
    "deployments/observability/tracing.py": "the times of a span, which other machines compare",
    "deployments/observability/inference_statistics.py": "when the last inference was",
    "deployments/modelstore/manager/shared_files.py": "whether a file was changed just now",
    "deployments/pipelines/serving/autoscaler.py": "the hour, for jumps that recur",
    "deployments/serving/replica.py": "when the days of a history end",
    "deployments/console/feed.py": "the time shown beside what the console shows",
    "sojourn/commands/loadtest.py": "the time at which a test began, for its page",
    "sojourn/commands/profile.py": "the date of a profile",
}
_READERS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}


def reads_time_of_day(path):
    """Return whether the code of a file reads the time of day."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else None
            owner = node.value.id if isinstance(node.value, ast.Name) else owner
            if (owner, node.attr) in _READERS:
                return True
        if isinstance(node, ast.ImportFrom) and any(
            (node.module, name.name) in _READERS for name in node.names
        ):
            return True
    return False


@pytest.mark.slow
def test_the_time_of_day_is_read_only_where_a_step_does_no_harm():
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if reads_time_of_day(path)
    }
    assert found == set(ALLOWED)
