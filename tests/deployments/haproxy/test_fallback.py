"""A deployment that lifts the minimum of replicas has its requests held."""

from pathlib import Path

from deployments.haproxy.fallback import always_served, note_minimum


def test_a_note_says_that_there_may_be_no_replicas(tmp_path: Path) -> None:
    both = {"http-app", "http-other"}
    assert always_served(tmp_path, both) == both
    for _ in range(2):
        note_minimum(tmp_path, "http-app", may_have_none=True)
        assert always_served(tmp_path, both) == {"http-other"}
    for _ in range(2):
        note_minimum(tmp_path, "http-app", may_have_none=False)
        assert always_served(tmp_path, both) == both


def test_a_node_without_haproxy_has_no_use_for_a_note(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for may_have_none in (True, False):
        note_minimum(nowhere, "http-app", may_have_none=may_have_none)
    assert always_served(nowhere, {"http-app"}) == {"http-app"}
