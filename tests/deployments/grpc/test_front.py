import contextlib
import signal
import subprocess
import sys
from contextlib import nullcontext

import grpc
import numpy as np
import orjson
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.grpc.front import open_front
from deployments.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from tests.support.http.canned_bytes import NO_ANSWERS, sending
from tests.support.models.doubles_service import USER_CONFIG, Doubles, listening, serving
from tests.support.models.every_kind import ARRAYS, Shouts, check

pytestmark = pytest.mark.slow  # the client starts threads, and takes a second to import
MESSAGE_BYTES = 1 << 20


@contextlib.asynccontextmanager
async def asking(model=None, host="127.0.0.1"):
    name = type(model or Doubles()).__name__.lower()
    async with (
        serving(model, HttpToolsProtocol, name, limits=USER_CONFIG["limits"]) as (_, _, port),
        open_front(f"http://127.0.0.1:{port}", host, 0, MESSAGE_BYTES) as bound,
        triton_aio.InferenceServerClient(f"127.0.0.1:{bound}") as client,
    ):
        yield client


@pytest.fixture
async def client():
    async with asking() as made:
        yield made


def doubles(values):
    tensor = triton.InferInput("x", [len(values), 2], "FP32")
    tensor.set_data_from_numpy(np.array(values, np.float32))
    return [tensor]


async def status_of(call):
    with pytest.raises(InferenceServerException) as caught:
        await call
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


async def test_tensors_of_every_kind_travel():
    given = []
    for spec in Shouts.inputs:
        array = ARRAYS[spec.name]
        given.append(triton.InferInput(spec.name, list(array.shape), spec.datatype))
        given[-1].set_data_from_numpy(array)
    async with asking(Shouts()) as client:
        result = await client.infer("shouts", given, request_id="7")
        check(result)
        assert result.get_response().id == "7"
        named = [triton.InferRequestedOutput("single")]
        (output,) = (await client.infer("shouts", given, outputs=named)).get_response().outputs
        assert output.name == "single"


async def test_health_and_metadata(client):
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("doubles", "1")
    assert (await client.get_server_metadata()).name == "sojourn"
    metadata = await client.get_model_metadata("doubles")
    (tensor,) = metadata.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "FP32", [-1, 2])
    assert list(metadata.versions) == ["1"]


async def test_an_error_has_the_status_and_the_message_of_http(client):
    unknown = await status_of(client.infer("other", doubles([(1, 2)])))
    assert unknown == ("NOT_FOUND", "there is no model 'other'; this service has 'doubles'")
    version = await status_of(client.infer("doubles", doubles([(1, 2)]), model_version="2"))
    assert version == ("NOT_FOUND", "model 'doubles' has no version '2'; its version is '1'")
    odd_name = await status_of(client.infer("a/../b c", doubles([(1, 2)])))
    assert odd_name[0] == "NOT_FOUND"
    rows = await status_of(client.infer("doubles", doubles([(1, 2)] * 7)))
    assert rows == ("RESOURCE_EXHAUSTED", "a request may have at most 6 rows, not 7")
    failed = await status_of(client.infer("doubles", doubles([(13, 2)])))
    assert failed[0] == "INTERNAL"
    assert "poison" not in failed[1]
    wrong = [triton.InferInput("x", [1, 2], "FP64").set_data_from_numpy(np.zeros((1, 2)))]
    assert (await status_of(client.infer("doubles", wrong)))[0] == "INVALID_ARGUMENT"
    assert (await status_of(client.get_model_metadata("other")))[0] == "NOT_FOUND"
    assert (await status_of(client.is_model_ready("other")))[0] == "NOT_FOUND"


async def test_a_deadline_ends_the_request_at_the_service():
    model = Doubles()
    model.gate.clear()
    async with asking(model) as client:
        status, _ = await status_of(client.infer("doubles", doubles([(1, 2)]), client_timeout=0.3))
        assert status == "DEADLINE_EXCEEDED"
        model.gate.set()
        # HTTP has deadlines of a day at most.
        for deadline_s in (None, 1e6):
            answer = await client.infer("doubles", doubles([(1, 2)]), client_timeout=deadline_s)
            assert answer.as_numpy("y").tolist() == [[2, 4]]


@contextlib.asynccontextmanager
async def refusing(host):
    """Serve a front before a server that refuses all and repeats some fields of the request."""

    async def refuse(scope, _receive, send):
        fields = dict(scope["headers"])
        kept = (b"host", b"authorization", b"x-other", b"x-request-timeout-ms")
        told = b" ".join(fields[name] for name in kept if name in fields)
        body = orjson.dumps({"error": told.decode()})
        headers = [(b"retry-after", b"7"), (b"x-sojourn-reason", b"queue_full")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with (
        listening(refuse) as (_, port),
        open_front(f"http://127.0.0.1:{port}", host, 0, MESSAGE_BYTES) as bound,
        grpc.aio.insecure_channel(f"127.0.0.1:{bound}") as channel,
    ):
        yield (
            channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                ModelInferRequest.SerializeToString,
                ModelInferResponse.FromString,
            ),
            port,
        )


async def test_a_refusal_says_why_and_when_to_come_back():
    async with refusing("127.0.0.1") as (infer, port):
        metadata = (("authorization", "Bearer t"), ("x-other", "x"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(ModelInferRequest(), metadata=metadata, timeout=600)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    forwarded, _, timeout_ms = caught.value.details().rpartition(" ")
    assert forwarded == f"127.0.0.1:{port} Bearer t"
    assert 400_000 < int(timeout_ms) < 700_000
    trailing = dict(caught.value.trailing_metadata())
    assert (trailing["retry-after"], trailing["x-sojourn-reason"]) == ("7", "queue_full")


async def test_a_front_that_others_reach_does_not_pose_as_this_machine():
    """A service without tokens answers requests to loopback alone."""
    async with refusing("0.0.0.0") as (infer, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(ModelInferRequest())
    assert caught.value.details().startswith("0.0.0.0:")


@pytest.mark.parametrize("breaks_off", [False, True])
async def test_a_service_that_is_away_or_breaks_off_is_unavailable(breaks_off):
    other = sending(NO_ANSWERS["truncated"]) if breaks_off else nullcontext("http://127.0.0.1:1")
    with other as url:
        status, message = await status_at(url)
    assert (status, f"no answer from {url}" in message) == ("UNAVAILABLE", True)


async def status_at(url):
    async with (
        open_front(url, "127.0.0.1", 0, MESSAGE_BYTES) as bound,
        triton_aio.InferenceServerClient(f"127.0.0.1:{bound}") as client,
    ):
        return await status_of(client.infer("doubles", doubles([(1, 2)])))


async def test_an_error_without_a_message_has_its_status_and_a_service_that_refuses_is_not_ready():
    with sending(b"HTTP/1.1 502 \r\nContent-Length: 1\r\nConnection: close\r\n\r\nx") as url:
        assert await status_at(url) == ("INTERNAL", "the service answered with status 502")
    with sending(b"HTTP/1.1 503 \r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as url:
        async with (
            open_front(url, "127.0.0.1", 0, MESSAGE_BYTES) as bound,
            triton_aio.InferenceServerClient(f"127.0.0.1:{bound}") as client,
        ):
            assert await client.is_server_ready() is False


async def test_a_message_beyond_the_limit_is_refused(client):
    large = doubles(np.zeros((MESSAGE_BYTES // 8 + 1, 2)))
    assert (await status_of(client.infer("doubles", large)))[0] == "RESOURCE_EXHAUSTED"


def test_the_command_serves_until_it_is_stopped_and_names_a_port_in_use():
    command = [sys.executable, "-m", "sojourn.cli", "grpc", "--url", "http://127.0.0.1:1", "--port"]
    with subprocess.Popen([*command, "0"], stderr=subprocess.PIPE, text=True) as front:
        port = front.stderr.readline().split(",")[0].rpartition(":")[2]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(30)
        second = subprocess.run([*command, port], capture_output=True, text=True)
        front.send_signal(signal.SIGTERM)
        assert front.wait() == 0
    assert second.returncode == 2
    assert second.stderr == f"sojourn: cannot listen on 127.0.0.1:{port}: is it in use?\n"
