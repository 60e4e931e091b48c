"""A small service that speaks the Open Inference Protocol and misbehaves on demand.

Run it as ``python loadtest_service.py PORT_FILE [OPTIONS_JSON]``. Like an emulated model, it echoes
its input, after `delay_s`. The options list requests by number, from 1: `wrong` get a wrong value,
`busy` a 503, `drop` a closed connection, `mute` no answer. With `stall` = [FIRST, SECONDS], nothing
is answered for SECONDS from request FIRST on. With `token`, a request without it gets a 401.
"""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

options: dict[str, Any] = {
    "delay_s": 0.001,
    "wrong": [],
    "busy": [],
    "drop": [],
    "mute": [],
    "stall": None,
    "sla": {"response_time_ms": 100, "percentile": 99},
    "token": None,
}
options |= json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
state = {"requests": 0, "stalled_until": 0.0}


async def metadata(request):
    if request.match_info["model"] != "echo":
        return web.json_response({"error": "no such model"}, status=404)
    return web.json_response(
        {
            "name": "echo",
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 1]}],
            "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, 1]}],
        }
    )


async def policy(_):
    if options["sla"] is None:
        return web.json_response({"error": "no such path"}, status=404)
    return web.json_response({"sla": options["sla"]})


async def infer(request):
    body = await request.json()
    state["requests"] += 1
    number = state["requests"]
    loop = asyncio.get_running_loop()
    if options["stall"] and number == options["stall"][0]:
        state["stalled_until"] = loop.time() + options["stall"][1]
    await asyncio.sleep(max(options["delay_s"], state["stalled_until"] - loop.time()))
    if number in options["mute"]:
        await asyncio.sleep(60)
    if number in options["drop"]:
        request.transport.abort()
    if number in options["busy"]:
        return web.json_response({"error": "busy"}, status=503)
    (tensor,) = body["inputs"]
    data = [value + (number in options["wrong"]) for value in tensor["data"]]
    output = {"name": "output", "datatype": "FP32", "shape": tensor["shape"], "data": data}
    return web.json_response({"model_name": "echo", "outputs": [output]})


@web.middleware
async def check_token(request, handler):
    wanted = options["token"]
    if wanted is not None and request.headers.get("Authorization") != f"Bearer {wanted}":
        return web.json_response({"error": "this needs a token"}, status=401)
    return await handler(request)


async def main():
    app = web.Application(middlewares=[check_token])
    app.router.add_get("/v2/models/{model}", metadata)
    app.router.add_get("/sojourn/policy", policy)
    app.router.add_post("/v2/models/{model}/infer", infer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port_file = Path(sys.argv[1])
    port_file.with_suffix(".new").write_text(str(runner.addresses[0][1]))
    port_file.with_suffix(".new").rename(port_file)
    await asyncio.Event().wait()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
