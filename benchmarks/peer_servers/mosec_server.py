"""``mosec_server.py --port PORT``: mosec with one worker that batches."""

import works
from mosec import Server, Worker


class Work(Worker):
    def deserialize(self, data):
        return data

    def forward(self, data):
        return works.work(data)

    def serialize(self, data):
        return data


if __name__ == "__main__":
    server = Server()
    server.append_worker(Work, num=1, max_batch_size=works.BATCH_SIZE, max_wait_time=max(1, int(works.WAIT_MS)))
    server.run()
