from policy.batcher.bisection import BatchBisection
from policy.batcher.requests import Request, Slice


def slices(names):
    return [Slice(Request(0.0, 1, name), 0, 1) for name in names]


def names(parts: list[Slice]):
    return "".join(part.request.content for part in parts)


def cancel(bisection: BatchBisection, part: Slice):
    part.request.cancelled = True
    bisection.discard(part.request)


def test_a_cancelled_suspect_may_have_been_the_culprit():
    bisection = BatchBisection()
    group = slices("abc")
    bisection.add(group, has_culprit=True)
    cancel(bisection, group[0])
    tested, is_last = bisection.next_test(8)
    assert (names(tested), is_last) == ("bc", False)


def test_the_last_group_is_never_crowded_out():
    bisection = BatchBisection()
    bisection.add(slices("ab"), has_culprit=True)
    assert not bisection.crowd_out(1)
