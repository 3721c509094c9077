"""``litserve_server.py --port PORT``: LitServe with one worker that batches. It takes JSON alone, which it parses itself."""

import os
import sys

import litserve
import works
from fastapi import Request, Response


def total(values):
    return [{"sum": sum(numbers)} for numbers in values]


class Work(litserve.LitAPI):
    def setup(self, device):
        self.work = {"echo": works.echo, "total": total, "sleep": works.sleep}[os.environ["WORK"]]

    def decode_request(self, request: Request):
        return request

    def batch(self, inputs):
        return list(inputs)

    def predict(self, inputs):
        return self.work(inputs)

    def unbatch(self, outputs):
        return outputs

    def encode_response(self, output) -> Response:
        return Response(works.encode(output), media_type="application/json")


if __name__ == "__main__":
    api = Work(max_batch_size=works.BATCH_SIZE, batch_timeout=works.WAIT_MS / 1000, api_path="/inference")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(sys.argv[sys.argv.index("--port") + 1]), generate_client_file=False, log_level="warning")
