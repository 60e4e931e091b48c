import warnings
from typing import Any

import pytest
from starlette.requests import Request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from benchmarks.peers.plain_serve import Plain


@pytest.mark.slow
async def test_an_answer_has_the_length_that_the_open_loop_client_reads() -> None:
    async def receive():
        return {"type": "http.request", "body": b'{"x": [1]}'}

    async def infer(row):
        return {"y": row["x"]}

    served: Any = Plain
    plain = object.__new__(served.func_or_class)  # without its model
    plain._infer = infer
    answer = await plain(Request({"type": "http"}, receive))
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.body == b'{"y":[1]}'
