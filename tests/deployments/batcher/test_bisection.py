"""Who is tested next, and what the outcome says of the others."""

from deployments.batcher.bisection import BatchBisection
from deployments.batcher.requests import Request, Slice


def slices(names: str) -> list[Slice]:
    return [Slice(Request(0.0, 1, name), 0, 1) for name in names]


def names(parts: list[Slice]) -> str:
    return "".join(part.request.content for part in parts)


def cancel(suspects: BatchBisection, part: Slice) -> None:
    part.request.cancelled = True
    suspects.forget(part.request)


def test_the_search_in_progress_goes_on_before_the_next_begins() -> None:
    suspects = BatchBisection()
    suspects.add(slices("abcd"), guilty=True)
    suspects.add(slices("efgh"), guilty=True)
    tested, alone = suspects.take(8)
    assert (names(tested), alone, suspects.rows) == ("ab", False, 6)
    suspects.passed()
    assert names(suspects.take(8)[0]) == "c"
    suspects.passed()
    assert suspects.take(8)[1], "d is the last suspect, and tested alone"
    suspects.passed()
    assert names(suspects.take(8)[0]) == "ef"


def test_a_test_that_fails_clears_the_others() -> None:
    suspects = BatchBisection()
    suspects.add(slices("abcd"), guilty=True)
    tested, _ = suspects.take(8)
    assert names(suspects.failed()) == "cd"
    suspects.add(tested, guilty=True, first=True)
    assert suspects.rows == 2
    assert names(suspects.take(8)[0]) == "a"


def test_where_somebody_left_it_may_have_been_the_culprit() -> None:
    suspects = BatchBisection()
    group = slices("abc")
    suspects.add(group, guilty=True)
    cancel(suspects, group[0])
    tested, alone = suspects.take(8)
    assert (names(tested), alone) == ("bc", False)


def test_who_was_not_tested_after_all_leaves_the_others_in_doubt() -> None:
    suspects = BatchBisection()
    suspects.add(slices("abcd"), guilty=True)
    suspects.take(8)
    suspects.doubt()
    suspects.passed()
    assert names(suspects.take(8)[0]) == "cd", "all of them, as they may all be innocent"


def test_a_group_that_is_not_believed_guilty_is_tested_whole_up_to_the_largest_batch() -> None:
    suspects = BatchBisection()
    suspects.add(slices("abcdef"), guilty=False)
    assert names(suspects.take(4)[0]) == "abc"
    suspects.passed()
    assert names(suspects.take(4)[0]) == "def"


def test_the_oldest_groups_are_crowded_out_and_the_last_never_is() -> None:
    suspects = BatchBisection()
    for group in ("ab", "cd", "ef"):
        suspects.add(slices(group), guilty=True)
    assert [request.content for request in suspects.crowd_out(3)] == ["a", "b", "c", "d"]
    assert suspects.rows == 2
    assert not suspects.crowd_out(1)
