from functools import partial

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.errors import BadRequestError
from deployments.http.request_head import (
    END_OF_HEAD,
    MAX_FIELDS,
    HeaderCache,
    RequestHead,
    accepts_gzip,
    check_single_valued,
    read_length,
    read_priority,
    read_timeout_ms,
)

PATH = b"/v2/models/m/infer"
LINES = ["Host: localhost", "Content-Length: 7", "Content-Type: application/json"]


ORDINARY = "POST /v2/models/m/infer HTTP/1.1"


def head_of(*lines, start=ORDINARY):
    return "\r\n".join([start, *lines]).encode("latin-1") + END_OF_HEAD


def find(data, heads=None):
    return (heads or HeaderCache(PATH)).find(data, data.index(END_OF_HEAD))


def test_reads_what_the_batcher_needs():
    lines = ["X-Request-Timeout-Ms: 250", "X-Request-Priority: 1"]
    lines += ["Inference-Header-Content-Length: 5", "Authorization: Bearer abc"]
    head, request_id, traceparent, *_ = find(head_of(*LINES, *lines))
    assert head == RequestHead(7, 5, 250, 1, None, None, b"Bearer abc")
    assert request_id is None
    assert traceparent is None


def test_a_head_with_two_lines_of_a_kind_leaves_nothing_of_them_behind():
    """Without the first of them, it is what the head of a request with only one is."""
    heads = HeaderCache(PATH)
    line = "traceparent: 00-ab"
    for lines in ([line, line], [line]):
        head, _, traceparent = find(head_of(*LINES, *lines), heads)
    assert head.traceparent is None
    assert traceparent == b"00-ab"


LENGTH = partial(read_length, name=b"content-length")
WRONG_LENGTHS = [b"-1", b"+1", b"1_0", b"1.5", b"x", b"", b" 1", b"9" * 5000, b"\xb2"]


@pytest.mark.parametrize(
    ("name", "read", "right", "wrong"),
    [
        (b"content-length", LENGTH, {b"7": 7}, WRONG_LENGTHS),
        (
            b"x-request-timeout-ms",
            read_timeout_ms,
            {b"250": 250, b"0.5": 0.5, b"007": 7, b"1e3": 1000},
            [b"0", b"-1", b"nan", b"1_0", b"", b"86400001", b"9" * 400],
        ),
        (
            b"x-request-priority",
            read_priority,
            {b"0": 0, b"1": 1, b"100": 100},
            [b"101", b"-1", b"high", b"", b"\xff", b"01", b"1" * 5000],
        ),
    ],
)
def test_numbers_in_fields_are_in_their_range(name, read, right, wrong):
    assert not read({})
    assert {value: read({name: value}) for value in right} == right
    for value in wrong:
        with pytest.raises(BadRequestError, match=f"(?i){name.decode()} must be"):
            read({name: value})


def test_repeated_fields_must_agree():
    check_single_valued([(b"content-length", b"1"), (b"cookie", b"a")] * 2)
    check_single_valued([(b"cookie", b"a"), (b"cookie", b"b"), (b"x-request-id", b"a")])
    with pytest.raises(BadRequestError, match="content-length is given more than once"):
        check_single_valued([(b"content-length", b"1"), (b"content-length", b"2")])


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        (b"gzip", True),
        (b"br;q=1.0, GZIP;q=0.8, *;q=0.1", True),
        (b"*", True),
        (b"*;q=0", False),
        (b"gzip;q=0.0, *", False),
        (b"deflate", False),
        (b"\xff;;,", False),
    ],
)
def test_who_accepts_gzip(value, accepted):
    assert accepts_gzip({b"accept-encoding": value}) == accepted


@pytest.mark.parametrize(
    "lines",
    [
        ["Host: x"],
        ["Transfer-Encoding: chunked"],
        [*LINES, "Transfer-Encoding: chunked"],
        [*LINES, "Content-Length: 8"],
        [*LINES, "Expect: 100-continue"],
        [*LINES, "Content-Encoding: gzip"],
        [*LINES, "Connection: close"],
        [*LINES, "X-Request-Timeout-Ms: soon"],
        [*LINES, "X-Request-Priority: 700"],
        ["Host: x", "Content-Length: 1_0"],
        [*LINES, "x-request-id: a", "X-Request-ID: b"],
        [*LINES, "x-request-id: a\nset-cookie: b"],
        [*LINES, "x-request-id: a", " folded"],
        [*LINES, "x-request-id: "],
        [*LINES, "traceparent: a", "traceparent: b"],
        [*LINES, "Authorization: Bearer a", "Authorization: Bearer b"],
        [*LINES, "Bad Name: x"],
    ],
)
def test_leaves_unusual_requests_to_uvicorn(lines):
    assert find(head_of(*lines)) == (None, None, None)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        *(("POST", "GET"), ("infer", "infer/"), ("infer", "infer?a=1"), ("/v2", "http://x/v2")),
        *(("1.1", "1.0"), (ORDINARY, "")),
    ],
)
def test_leaves_other_methods_paths_and_versions_to_uvicorn(part, other):
    start = ORDINARY.replace(part, other, 1)
    assert find(head_of(*LINES, start=start)) == (None, None, None)


NAMES = ["x-request-id", "X-Request-ID", "traceparent", "content-length", "transfer-encoding"]
NAMES += ["expect", "authorization", "x", "host", "x-request-priority", "connection"]
VALUES = st.one_of(
    st.sampled_from(["7", "8", "chunked", "close", "a", "00-ab", "", " 7", "7 ", "1"]),
    st.text(st.sampled_from("a7 \t\r\n\0:;,\x7f\xff"), max_size=8),
)
HOSTILE = st.one_of(
    st.builds("{}: {}".format, st.sampled_from(NAMES), VALUES),
    st.builds("{}:{}".format, st.sampled_from(NAMES), VALUES),
    st.sampled_from([" folded", "\tfolded", "x", ":", "x-request-id: a\ncontent-length: 9"]),
)


class Parsed:
    def __init__(self, head):
        self.headers = []
        self.complete = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)

    def on_header(self, name, value):
        self.headers.append((name.lower(), value))

    def on_headers_complete(self):
        self.complete = True

    def values(self, name):
        return [value for field, value in self.headers if field == name]


def check_agreement(lines, heads):
    """Check that a head is ordinary only if the parser reads the same in it; return whether."""
    data = head_of(*lines)
    data = data[: data.index(END_OF_HEAD) + len(END_OF_HEAD)]
    head, request_id, traceparent = find(data, heads)
    if head is None:
        return False
    parsed = Parsed(data)
    assert parsed.complete
    assert {int(value) for value in parsed.values(b"content-length")} == {head.body_length}
    assert parsed.values(b"x-request-id") == ([] if request_id is None else [request_id])
    assert traceparent == (parsed.values(b"traceparent") or [None])[-1]
    assert {head.authorization} == ({*parsed.values(b"authorization")} or {None})
    priorities = {int(value) for value in parsed.values(b"x-request-priority")}
    assert {head.priority} == (priorities or {0})
    assert not {b"transfer-encoding", b"expect"} & {name for name, _ in parsed.headers}
    assert b"close" not in parsed.values(b"connection")
    return True


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.lists(st.tuples(HOSTILE, st.integers(0, 9)), max_size=6))
def test_the_fast_path_and_the_parser_agree_on_hostile_heads(hostile):
    """Lines that are cut out unparsed hid a Transfer-Encoding, a NUL and a bare CR."""
    heads, lines = HeaderCache(PATH), [*LINES]
    check_agreement(["Host: x", "Content-Length: 7"], heads)
    for line, place in hostile:
        lines.insert(place, line)
    first = check_agreement(lines, heads)
    assert check_agreement(lines, heads) == first


def test_more_fields_than_allowed_do_not_take_the_fast_path():
    lines = [*LINES, *["x: y"] * (MAX_FIELDS - len(LINES))]
    assert find(head_of(*lines))[0] is not None
    assert find(head_of(*lines, "x: y"))[0] is None
