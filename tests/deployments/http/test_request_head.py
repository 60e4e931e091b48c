"""The heads of ordinary inference requests, and which requests are not ordinary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.http.request_head import END_OF_HEAD, HeaderCache, RequestHead

PATH = b"/v2/models/m/infer"
LINES = ["Host: x", "Content-Length: 7", "Content-Type: application/json"]


def head_of(*lines: str, start: str = "POST /v2/models/m/infer HTTP/1.1") -> bytes:
    return "\r\n".join([start, *lines]).encode("latin-1") + END_OF_HEAD


def find(
    data: bytes, heads: HeaderCache | None = None
) -> tuple[RequestHead | None, bytes | None, bytes | None, int]:
    return (heads or HeaderCache(PATH)).find(data, data.index(END_OF_HEAD))


def test_reads_what_the_batcher_needs() -> None:
    lines = ["X-Request-Timeout-Ms: 250", "X-Request-Priority: 1"]
    lines += ["Inference-Header-Content-Length: 5", "Authorization: Bearer abc"]
    head, request_id, traceparent, *_ = find(head_of(*LINES, *lines))
    assert head == RequestHead(7, 5, 250, 1, None, None, b"Bearer abc")
    assert request_id is None
    assert traceparent is None


@pytest.mark.parametrize("place", range(5))
def test_what_haproxy_says_is_read_beside_the_head(place: int) -> None:
    """It changes with each request, so a head is not parsed anew for it."""
    heads = HeaderCache(PATH)
    found = []
    for number in (0, 7, 12_345):
        lines = [*LINES, "x-request-id: a"]
        if number:
            lines.insert(place, f"x-sojourn-sent-us: {number}")
        found.append(find(head_of(*lines), heads))
    assert [one[3] for one in found] == [0, 7, 12_345]
    assert all(head is found[0][0] is not None for head, *_ in found)


def test_a_head_with_two_lines_of_a_kind_leaves_nothing_of_them_behind() -> None:
    """Without the first of them, it is what the head of a request with only one is."""
    heads = HeaderCache(PATH)
    line = "traceparent: 00-ab"
    for lines in ([line, line], [line]):
        head, _, traceparent, _ = find(head_of(*LINES, *lines), heads)
    assert head is not None
    assert head.traceparent is None
    assert traceparent == b"00-ab"


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("name", ["x-request-id", "X-Request-ID", "X-REQUEST-ID"])
def test_finds_the_request_id_wherever_and_however_it_is_written(place: int, name: str) -> None:
    heads = HeaderCache(PATH)
    for number in (b"1", b"2"):
        lines = [*LINES[:place], f"{name}: id-{number.decode()}", *LINES[place:]]
        head, request_id, *_ = find(head_of(*lines), heads)
        assert head is not None
        assert head.body_length == 7
        assert request_id == b"id-" + number


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_finds_the_trace_beside_the_id(place: int, name: str) -> None:
    heads = HeaderCache(PATH)
    for number in ("1", "2"):
        lines = [*LINES, "x-request-id: a"]
        lines.insert(place, f"{name}: 00-{number}")
        head, request_id, traceparent, *_ = find(head_of(*lines), heads)
        assert head is not None
        assert head.body_length == 7
        assert (request_id, traceparent) == (b"a", b"00-" + number.encode())


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
        [*LINES, "Connection: upgrade", "Upgrade: websocket"],
        [*LINES, "X-Request-Timeout-Ms: soon"],
        [*LINES, "X-Request-Timeout-Ms: 1", "X-Request-Timeout-Ms: 2"],
        [*LINES, "X-Request-Priority: 700"],
        [*LINES, "Inference-Header-Content-Length: -1"],
        ["Host: x", "Content-Length: 1_0"],
        [*LINES, "x-request-id: a", "x-request-id: b"],
        [*LINES, "x-request-id: a", "X-Request-ID: b"],
        [*LINES, "X-Request-ID: a", "X-Request-ID: a"],
        [*LINES, "x-request-id: two words"],
        [*LINES, "x-request-id: \n"],
        [*LINES, "x-request-id: a\nset-cookie: b"],
        [*LINES, "x-request-id: a", " folded"],
        [*LINES, "x-request-id: "],
        [*LINES, "traceparent: a", "traceparent: b"],
        [*LINES, "traceparent: a b"],
        [*LINES, "Authorization: Bearer a", "Authorization: Bearer b"],
        [*LINES, "Bad Name: x"],
    ],
)
def test_leaves_unusual_requests_to_uvicorn(lines: list[str]) -> None:
    assert find(head_of(*lines)) == (None, None, None, 0)


@pytest.mark.parametrize(
    "start",
    [
        "GET /v2/models/m/infer HTTP/1.1",
        "POST /v2/models/m/infer/ HTTP/1.1",
        "POST /v2/models/m/infer?a=1 HTTP/1.1",
        "POST /v2/models/%6d/infer HTTP/1.1",
        "POST http://x/v2/models/m/infer HTTP/1.1",
        "POST /v2/models/m/infer HTTP/1.0",
        "POST /v2/models/m/infer HTTP/2.0",
        "",
        "\r\nPOST /v2 HTTP/1.1",
    ],
)
def test_leaves_other_methods_paths_and_versions_to_uvicorn(start: str) -> None:
    assert find(head_of(*LINES, start=start)) == (None, None, None, 0)


def test_many_different_heads_are_all_answered_right() -> None:
    heads = HeaderCache(PATH)
    for _ in range(2):
        for length in range(1100):
            head, *_ = find(head_of("Host: x", f"Content-Length: {length}"), heads)
            assert head is not None
            assert head.body_length == length


@given(st.text(st.characters(max_codepoint=255), max_size=30), st.integers(0, 3))
def test_no_request_id_changes_what_else_the_head_says(text: str, place: int) -> None:
    """The law of the key: leaving out the id's line leaves out nothing else."""
    lines = [*LINES[:place], f"x-request-id: {text}", *LINES[place:]]
    head, request_id, *_ = find(head_of(*lines))
    if head is not None:
        assert head == RequestHead(7, None, None, 0, None)
        assert request_id == text.encode("latin-1")
        assert not set(request_id) & set(b"\r\n\0")
