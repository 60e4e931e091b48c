"""The replicas say how long their requests may be held."""

from pathlib import Path

from deployments.haproxy.fallback import HELD_MS, held_ms, note_held

BOTH = ("http-app", "http-other")


def test_the_newest_note_counts(tmp_path: Path) -> None:
    assert held_ms(tmp_path, BOTH) == dict.fromkeys(BOTH, HELD_MS)
    for limit in (250.0, 250.0, 400.0):
        note_held(tmp_path, "http-app", limit)
        assert held_ms(tmp_path, BOTH) == {"http-app": limit, "http-other": HELD_MS}
    note_held(tmp_path, "http-app", None)
    assert held_ms(tmp_path, BOTH) == {"http-other": HELD_MS}
    note_held(tmp_path, "http-app", 250.0)
    assert held_ms(tmp_path, BOTH) == {"http-app": 250, "http-other": HELD_MS}
    assert len(list(tmp_path.iterdir())) == 1


def test_what_may_have_had_no_replicas_from_the_start_is_not_limited(tmp_path: Path) -> None:
    note_held(tmp_path, "http-app", 250.0)
    assert held_ms(tmp_path, [""]) == {}


def test_a_node_without_haproxy_has_no_use_for_a_note(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    note_held(nowhere, "http-app", None)
    assert held_ms(nowhere, ["http-app"]) == {"http-app": HELD_MS}
