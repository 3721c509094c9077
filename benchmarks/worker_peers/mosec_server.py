"""``mosec_server.py --port PORT``: mosec with one worker that batches."""

import os

import tensors
from mosec import Server, Worker


class Model(Worker):
    def __init__(self):
        super().__init__()
        self.network = tensors.Network()

    def deserialize(self, data):
        return tensors.read(data)

    def forward(self, data):
        return self.network.compute(data)

    def serialize(self, data):
        return tensors.encode(tensors.write(data))


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=int(os.environ["BATCH_SIZE"]), max_wait_time=int(os.environ["WAIT_MS"]))
    server.run()
