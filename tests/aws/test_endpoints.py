"""SageMaker's InvokeEndpoint, as the buffer asks it, against moto's server."""

from __future__ import annotations

from urllib.request import Request, urlopen

import msgspec

from sluice.buffer_service.invokers.sagemaker import SageMakerInvoker
from sluice.lambda_fn.contract import Batch, Item, decode_answers, encode_batch
from tests.buffer_service.aws_fakes import closing, nap

BATCH = Batch("nap", [Item("r1", "application/json", b'{"x":1}'), Item("r2", "application/octet-stream", b"\x00\xff")])


async def test_motos_sagemaker_is_asked_as_it_expects(moto_server: str) -> None:
    results = {"results": [{"Body": nap(encode_batch(BATCH)).decode(), "ContentType": "application/json"}]}
    static = Request(f"{moto_server}/moto-api/static/sagemaker/endpoint-results", data=msgspec.json.encode(results), method="POST")
    with urlopen(static) as response:
        assert response.status == 201
    async with closing(SageMakerInvoker(10.0)) as invoker:
        got = decode_answers(await invoker.invoke("sagemaker://nap", encode_batch(BATCH)), BATCH)
        assert [a.body for a in got] == [i.body for i in BATCH.items]
