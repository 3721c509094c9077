"""``litserve_server.py --port PORT``: LitServe with one worker that batches."""

import os
import sys

import litserve
import tensors
from fastapi import Request, Response


class Model(litserve.LitAPI):
    def setup(self, device):
        self.network = tensors.Network()

    def decode_request(self, request: Request):
        array = request["inputs"][0]
        return tensors.np.asarray(array["data"], tensors.np.float32).reshape(array["shape"])

    def batch(self, inputs):
        return list(inputs)

    def predict(self, inputs):
        return self.network.compute(inputs)

    def unbatch(self, outputs):
        return outputs

    def encode_response(self, output) -> Response:
        return Response(tensors.encode(tensors.write(output)), media_type="application/json")


if __name__ == "__main__":
    api = Model(
        max_batch_size=int(os.environ["BATCH_SIZE"]), batch_timeout=float(os.environ["WAIT_MS"]) / 1000, api_path="/inference"
    )
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(sys.argv[sys.argv.index("--port") + 1]), generate_client_file=False, log_level="warning")
