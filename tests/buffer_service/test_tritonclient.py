"""A client nobody here wrote, through the buffer and Redis, to a real ONNX network in `awslambdaric` processes."""

import asyncio

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as triton

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.invokers.aws_lambda import LambdaInvoker
from sluice.buffer_service.redis_store import RedisStore
from sluice.local.functions import Function as LambdaFunction
from sluice.local.lambda_runtime import LambdaRuntime
from sluice.local.networks import make_mlp
from tests.buffer_service.conftest import NO_BATCHING, Plans, serving

WIDTHS = (16, 32, 8)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "small.onnx"
    onnx.save(make_mlp(widths=WIDTHS), path)
    return str(path)


async def test_tritonclient_gets_for_each_of_64_tensors_at_once_its_own_answer(function, redis_server, network, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    environment = {"SLUICE_MODEL": network}
    policy = PolicyDocument.of(constructors.size_or_timeout(16, 0.02))
    plans = Plans(Plan(model="small", function="small-1769:live", policy=policy))
    store = RedisStore(redis_server.url, new_process_name())
    async with LambdaRuntime([LambdaFunction(name="small-1769", environment=environment)]) as runtime:
        invoker = LambdaInvoker(30.0, runtime.url)
        async with serving(function, NO_BATCHING, store, plans, invoker=invoker) as buffer:
            tensors = np.random.default_rng(1).normal(size=(64, 1, WIDTHS[0])).astype(np.float32)
            outputs = await asyncio.to_thread(_infer, buffer.url.removeprefix("http://"), tensors)
            used = runtime.usage("small-1769").invocations
    session = onnxruntime.InferenceSession(network)
    for tensor, output in zip(tensors, outputs, strict=True):
        np.testing.assert_allclose(output, session.run(None, {"x": tensor})[0], rtol=1e-5, atol=1e-6)
    assert used < 64, "requests were not batched"


def _infer(url, tensors):
    """Every tensor by one request of its own: half of them as binary data, half as JSON."""
    client = triton.InferenceServerClient(url, concurrency=64)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("small")
    assert client.get_model_metadata("small")["inputs"][0]["datatype"] == "FP32"

    def ask(i):
        request = triton.InferInput("x", list(tensors[i].shape), "FP32")
        request.set_data_from_numpy(tensors[i], binary_data=i % 2 == 0)
        wanted = None if i % 4 < 2 else [triton.InferRequestedOutput("y", binary_data=False)]
        return client.async_infer("small", [request], outputs=wanted, request_id=str(i))

    asked = [ask(i) for i in range(len(tensors))]
    outputs = []
    for i, pending in enumerate(asked):
        answer = pending.get_result()
        assert answer.get_response()["id"] == str(i)
        outputs.append(answer.as_numpy("y"))
    wrong = triton.InferInput("x", [1, 3], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
    with pytest.raises(triton.InferenceServerException, match=r"shape"):
        client.infer("small", [wrong])
    client.close()
    return outputs
