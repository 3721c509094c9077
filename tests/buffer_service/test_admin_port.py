import socket

import pytest

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.settings import Settings
from sluice.local.ports import chosen_port
from tests.buffer_service.conftest import NO_BATCHING, serving

OPERATED = ("/metrics", "/", "/status")


async def test_who_operates_has_a_port_of_his_own_and_nobody_asks_models_there(function):
    port = chosen_port()
    async with serving(function, NO_BATCHING, admin_port=port) as buffer:
        for path in OPERATED:
            assert (await buffer.get(path))[0] == 404
            async with buffer.http.get(f"http://127.0.0.1:{port}{path}") as response:
                assert response.status == 200
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        for path in ("/models/m", "/v2/models/m/infer"):
            async with buffer.http.post(f"http://127.0.0.1:{port}{path}", data=b"1") as response:
                assert response.status == 404
        async with buffer.http.get(f"http://127.0.0.1:{port}/v2/health/ready") as response:
            assert response.status == 200


async def test_without_one_all_is_at_one_port(function):
    async with serving(function, NO_BATCHING) as buffer:
        assert [(await buffer.get(path))[0] for path in OPERATED] == [200] * 3


@pytest.mark.parametrize("port", [-1, 65536, 8080])
def test_a_port_that_cannot_be_is_refused(port):
    allowed = "0 to 65535, and another than SLUICE_PORT; 0 has no port of its own"
    with pytest.raises(InvalidInput, match=f"SLUICE_ADMIN_PORT: {port} is not allowed; allowed: {allowed}"):
        Settings(admin_port=port)


async def test_what_is_turned_away_is_counted_by_reason(function):
    async with serving(function, NO_BATCHING, max_body_bytes=100) as buffer:
        await buffer.get("/nowhere")
        await buffer.get("/models/m")
        await buffer.post("/models/x", b"1")
        await buffer.post("/models/m", b"{")
        await buffer.post("/models/m", b" " * 200)
        with socket.create_connection(("127.0.0.1", int(buffer.url.rpartition(":")[2]))) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            connection.settimeout(5)
            async with buffer.http.get(buffer.url + "/v2") as response:
                assert response.status == 200
        metrics = (await buffer.get("/metrics"))[2].decode()
    for reason in ("PathNotServed", "MethodNotAllowed", "UnknownModel", "InvalidInput", "PayloadTooLarge", "Connection400"):
        assert f'sluice_turned_away_total{{reason="{reason}"}} 1.0' in metrics, reason


async def test_the_promise_the_process_the_version_and_the_cost_are_told(function):
    invoker = LocalInvoker({"f": function})
    async with serving(function, NO_BATCHING, invoker=invoker, invocation_usd=0.25) as buffer:
        await buffer.post("/models/m", b"1")
        metrics = (await buffer.get("/metrics"))[2].decode()
    for line in (
        'sluice_slo_seconds{model="m",percentile="95"} 0.5',
        'sluice_cost_usd_total{model="m"} 0.25',
        "sluice_build_info{",
    ):
        assert line in metrics
    assert "process_cpu_seconds_total" in metrics and "process_resident_memory_bytes" in metrics
