"""Compress answers for clients that ask for it, where that pays.

Compressing costs 12 ms per MB of JSON numbers and halves them, so it pays on links of less than
some 300 Mbit/s. A thread does it: zlib gives up the interpreter's lock.
"""

import re
import zlib
from functools import lru_cache

from deployments.http.answers import Answer

#: Clients such as httpx ask with every request; a smaller answer is quick on any link.
COMPRESSED_FROM_BYTES = 64 << 10
#: What is compressed first, to see whether it pays, and the most that may be left of it.
_SAMPLE_BYTES = 8 << 10
_WORTHWHILE_SHARE = 0.8
#: The fastest.
_LEVEL = 1
#: zlib's `wbits` of each coding that is offered, the preferred one first.
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
_PART = re.compile(rb"\s*([!#-~]+?)\s*(?:;\s*[qQ]\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?")


@lru_cache(maxsize=256)
def accepted_coding(value: bytes) -> bytes | None:
    """Return the coding to use, by the header Accept-Encoding (RFC 9110, section 12.5.3).

    None if the client accepts none of ours, or the header is malformed.
    """
    weights: dict[bytes, float] = {}
    for part in value.lower().split(b","):
        found = _PART.fullmatch(part)
        if found is None:
            return None
        weights[found[1]] = float(found[2] or 1)
    others = weights.get(b"*", 0.0)
    weight, coding = max(
        ((weights.get(name, others), name) for name in _WINDOW_BITS), key=lambda pair: pair[0]
    )
    return coding if weight > 0 and weight >= weights.get(b"identity", 0.0) else None


def pays(answer: Answer) -> bool:
    """Return whether an answer is large enough to be compressed, if its client asks for it."""
    return answer[0] == 200 and len(answer[1]) >= COMPRESSED_FROM_BYTES


def compressed(answer: Answer, coding: bytes) -> Answer:
    """Return an answer compressed, or as it is if it does not become much smaller."""
    status, body, headers = answer
    sample = _compress(body[:_SAMPLE_BYTES], coding)
    if len(sample) > _WORTHWHILE_SHARE * _SAMPLE_BYTES:
        return answer
    fields = [(b"content-encoding", coding), (b"vary", b"accept-encoding")]
    return status, _compress(body, coding), [*headers, *fields]


def _compress(content: bytes, coding: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS[coding])
    return compressor.compress(content) + compressor.flush()
