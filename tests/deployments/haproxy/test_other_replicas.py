"""What the other replicas refuse, by HAProxy's tables."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.haproxy.other_replicas import (
    FORGET_AFTER_S,
    MIN_TRIES,
    RefusedElsewhere,
    Tries,
    tries_elsewhere,
)

HEADER = "# pxname,svname,stot,bck,wretr,hrsp_5xx,"


def table(*servers: tuple[str, int, int, int], backend: str = "http-a") -> str:
    """Return a table with this replica, `servers` (name, sent, again, errors) and strangers."""
    lines = [
        f"{backend},{name},{sent},0,{again},{errors}," for name, sent, again, errors in servers
    ]
    return "\n".join(
        (
            *(HEADER, f"{backend},r-x7,900,0,900,0,", *lines),
            *(f"{backend},SERVE_PROXY-head,500,1,0,500,", "http-b,r-b1,700,0,700,0,", ""),
        )
    )


def test_only_the_other_replicas_of_the_same_service_count() -> None:
    found = tries_elsewhere(table(("r-a1", 100, 30, 20), ("r-a2", 50, 0, 0)), "-x7")
    assert found == {"r-a1": Tries(100, 30, 20), "r-a2": Tries(50, 0, 0)}


def test_without_this_replica_in_the_table_nothing_is_known() -> None:
    assert tries_elsewhere(table(("r-a1", 100, 30, 20)), "-gone") == {}


@settings(max_examples=50)
@given(
    looks=st.lists(
        st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1)), min_size=3, max_size=3),
        min_size=2,
        max_size=6,
    )
)
def test_the_share_is_between_the_least_and_the_most_that_one_refuses(
    looks: list[list[tuple[int, float]]],
) -> None:
    elsewhere = RefusedElsewhere("-x7")
    sent, refused = [0, 0, 0], [0, 0, 0]
    elsewhere.observe(table(*((f"r{n}", 0, 0, 0) for n in range(3))), 0.0)
    shares = []
    for second, counts in enumerate(looks, 1):
        for number, (more, share) in enumerate(counts):
            sent[number] += more
            refused[number] += round(share * more)
            if more:
                shares.append(round(share * more) / more)
        servers = [
            (f"r{n}", sent[n], refused[n] // 2, refused[n] - refused[n] // 2) for n in range(3)
        ]
        elsewhere.observe(table(*servers), float(second))
    found = elsewhere.share(float(len(looks)))
    if found:
        assert min(shares) - 1e-9 <= found <= max(shares) + 1e-9


@pytest.mark.parametrize(("refusals_of_errors", "share"), [(1.0, 0.8), (0.5, 0.55), (0.0, 0.3)])
def test_answers_that_failed_are_no_refusals(refusals_of_errors: float, share: float) -> None:
    """A model that failed on three requests of four had all others' refusals be final."""
    elsewhere = RefusedElsewhere("-x7")
    elsewhere.refusals_of_errors = refusals_of_errors
    elsewhere.observe(table(("r1", 0, 0, 0)), 0.0)
    elsewhere.observe(table(("r1", 100, 30, 50)), 0.1)
    assert elsewhere.share(0.1) == pytest.approx(share)


def test_what_was_refused_is_forgotten_in_seconds() -> None:
    elsewhere = RefusedElsewhere("-x7")
    elsewhere.observe(table(("r1", 0, 0, 0)), 0.0)
    elsewhere.observe(table(("r1", 1000, 900, 0)), 1.0)
    assert elsewhere.share(1.0) == pytest.approx(0.9)
    for second in range(2, 5):
        elsewhere.observe(table(("r1", 1000 * second, 900, 0)), float(second))
    assert elsewhere.share(4.0) < 0.1


def test_a_silent_haproxy_is_not_believed_for_long() -> None:
    """Otherwise refusals would stay final for as long as its admin socket does not answer."""
    elsewhere = RefusedElsewhere("-x7")
    elsewhere.observe(table(("r1", 0, 0, 0)), 0.0)
    elsewhere.observe(table(("r1", 1000, 900, 0)), 1.0)
    assert elsewhere.share(1.0 + FORGET_AFTER_S) == pytest.approx(0.9)
    assert elsewhere.share(1.1 + FORGET_AFTER_S) == 0


def test_a_few_tries_a_new_server_and_a_restart_say_nothing() -> None:
    elsewhere = RefusedElsewhere("-x7")
    elsewhere.observe(table(("r1", 0, 0, 0)), 0.0)
    few = int(MIN_TRIES) - 1
    elsewhere.observe(table(("r1", few, few, 0), ("new", 5000, 5000, 0)), 1.0)
    assert elsewhere.share(1.0) == 0
    elsewhere.observe(table(("r1", 3, 3, 0)), 2.0)
    assert elsewhere.share(2.0) == 0
