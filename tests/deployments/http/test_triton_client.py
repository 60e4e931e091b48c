import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.support.models.doubles_service import serving
from tests.support.models.every_kind import ARRAYS, Shouts, check


class Asker:
    """A client in its own thread, because its gevent sockets belong to one thread."""

    def __init__(self, port):
        self._pool = ThreadPoolExecutor(1)
        self._client = self._pool.submit(triton.InferenceServerClient, f"127.0.0.1:{port}").result()

    async def __call__(self, method, *args, **options):
        """Call the client's `method`."""
        call = functools.partial(getattr(self._client, method), *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def close(self):
        await self("close")
        self._pool.shutdown()


@pytest.fixture
async def ask():
    async with serving(Shouts(), HttpToolsProtocol, "shouts") as (_, _, port):
        made = Asker(port)
        yield made
        await made.close()


def inputs(*, binary=True):
    made = []
    for spec in Shouts.inputs:
        array = ARRAYS[spec.name]
        made.append(triton.InferInput(spec.name, list(array.shape), spec.datatype))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


def wanted(*, binary):
    return [triton.InferRequestedOutput(spec.name, binary) for spec in Shouts.outputs]


@pytest.mark.parametrize(("binary_in", "binary_out"), [(True, True), (True, None), (False, False)])
async def test_tensors_travel_as_binary_and_as_json(ask, binary_in, binary_out):
    outputs = None if binary_out is None else wanted(binary=binary_out)
    check(await ask("infer", "shouts", inputs(binary=binary_in), outputs=outputs, request_id="7"))


async def test_the_clients_calls_for_configuration_and_statistics_work(ask):
    """What perf_analyzer asks before and after it sends its load."""
    config = await ask("get_model_config", "shouts", "1")
    assert (config["name"], config["max_batch_size"]) == ("shouts", 6)
    assert config["input"][1] == {"name": "single", "data_type": "TYPE_FP32", "dims": [2]}
    assert [tensor["data_type"] for tensor in config["output"]] == [
        *("TYPE_FP16", "TYPE_FP32", "TYPE_BOOL", "TYPE_STRING")
    ]
    for _ in range(3):
        await ask("infer", "shouts", inputs())
    with pytest.raises(InferenceServerException):
        await ask("infer", "shouts", inputs()[:1])
    statistics, one, all_models = [
        (await ask("get_inference_statistics", *asked))["model_stats"]
        for asked in (("shouts", "1"), ("shouts",), ())
    ]
    assert statistics == one == all_models
    (statistics,) = statistics
    assert (statistics["name"], statistics["version"]) == ("shouts", "1")
    assert (statistics["inference_count"], statistics["execution_count"]) == (6, 3)
    counts = {name: part["count"] for name, part in statistics["inference_stats"].items()}
    assert counts["success"] == counts["queue"] == counts["compute_infer"] == 3
    assert counts["fail"] == 1
    (batches,) = statistics["batch_stats"]
    assert (batches["batch_size"], batches["compute_infer"]["count"]) == (2, 3)
    (entry,) = await ask("get_model_repository_index")
    assert entry == {"name": "shouts", "version": "1", "state": "READY", "reason": ""}
