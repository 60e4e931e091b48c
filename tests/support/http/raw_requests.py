"""Requests to the model `doubles` as bytes, and their answers, over sockets."""

import asyncio
import json
import re

INFER = "/v2/models/doubles/infer"
#: With this, a request goes to uvicorn's own protocol and the ASGI app.
GZIP = "Content-Encoding: gzip"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


def post(content, *lines, path=INFER, length=None):
    """Return a request with some header lines; `length` is what it announces."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    announced = len(data) if length is None else length
    head = [f"POST {path} HTTP/1.1", "Host: x", *lines, f"Content-Length: {announced}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


async def read_answer(reader):
    """Return the head and the body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(_LENGTH.search(head)[1]))


async def read_json(reader):
    """Return the status of the next answer, and its JSON."""
    head, content = await read_answer(reader)
    assert b"content-type: application/json" in head
    return int(head.split()[1]), json.loads(content)


async def exchange(port, *pieces, answers=1):
    """Send `pieces` on one connection, each read by the server on its own; return the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        for _ in range(3):  # the server reads it
            await asyncio.sleep(0)
    taken = [await read_answer(reader) for _ in range(answers)]
    writer.close()
    await writer.wait_closed()
    return taken
