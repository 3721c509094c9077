"""What runs in each function process of the local Lambda: ``awslambdaric`` with the CPU share of the function's memory.

What may live here: what must happen inside the process so that the duration as Lambda sees it includes it. On Lambda a function of
``s`` vCPU that needs ``c`` seconds of CPU takes ``c / s``; here it takes its wall time and then sleeps what is missing. The window
opens when the event is parsed and closes when the answer is written, so parsing and writing are slowed too, waiting is not, and
neither is the start of the process (Lambda does not hold that to the share either). What a function measures of itself has in it
what is slept afterwards.
"""

from __future__ import annotations

import http.client
import os
import time
from typing import Any

from awslambdaric import bootstrap
from awslambdaric.lambda_runtime_client import LambdaRuntimeClient
from awslambdaric.lambda_runtime_marshaller import LambdaMarshaller

from sluice.lambda_fn import clock
from sluice.local.parent_death import die_with

CPU_SHARE = "SLUICE_LOCAL_CPU_SHARE"
PARENT = "SLUICE_LOCAL_PARENT"


class Throttle:
    """Stretches a stretch of work to ``cpu time / share``."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._wall = self._cpu = 0.0

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Sleep what is missing; waiting itself costs no CPU, so one sleep is exact."""
        time.sleep(self._missing)

    def now(self) -> float:
        """What a clock shows (s) that is read by work which takes so long."""
        return time.perf_counter() + self._missing

    @property
    def _missing(self) -> float:
        return max(0.0, (time.process_time() - self._cpu) / self._share - (time.perf_counter() - self._wall))


class Marshaller(LambdaMarshaller):  # type: ignore[misc]
    """Opens the window before the event is parsed and closes it when the answer is written."""

    def __init__(self, throttle: Throttle) -> None:
        super().__init__()
        self._throttle = throttle

    def unmarshal_request(self, request: Any, content_type: str = "application/json") -> Any:
        self._throttle.begin()
        return super().unmarshal_request(request, content_type)

    def marshal_response(self, response: Any) -> Any:
        marshalled = super().marshal_response(response)
        self._throttle.end()
        return marshalled


class Client(LambdaRuntimeClient):  # type: ignore[misc]
    """The runtime client at an address with a path: one server serves every environment, each under a path of its own."""

    def __init__(self, address: str, throttle: Throttle) -> None:
        super().__init__(address)
        self.marshaller = Marshaller(throttle)
        self._throttle = throttle

    def post_invocation_error(self, *arguments: Any) -> None:
        self._throttle.end()
        super().post_invocation_error(*arguments)

    def post_init_error(self, error_response_data: dict[str, Any], error_type_override: str | None = None) -> None:
        # The original hands "host:port/path" to http.client, which takes the path for a part of the port.
        host, _, path = str(self.lambda_runtime_address).partition("/")
        headers = {"Lambda-Runtime-Function-Error-Type": error_type_override or error_response_data["errorType"]}
        connection = http.client.HTTPConnection(host)
        connection.request("POST", f"/{path}/2018-06-01/runtime/init/error", bootstrap.to_json(error_response_data), headers)
        connection.getresponse().read()


def main() -> None:
    """Serve invocations until the runtime API goes away."""
    # Here and not in the runtime's fork: without a preexec_fn a process is started in 0.3 ms of its event loop's time, not 4.
    die_with(int(os.environ.pop(PARENT)))
    throttle = Throttle(float(os.environ.pop(CPU_SHARE)))
    clock.now = throttle.now
    bootstrap.run(os.environ["_HANDLER"], Client(os.environ["AWS_LAMBDA_RUNTIME_API"], throttle))


if __name__ == "__main__":
    main()
