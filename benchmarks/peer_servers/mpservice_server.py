"""``mpservice_server.py --port PORT``: mpservice with one process that batches, behind uvicorn, by which it serves HTTP."""

import sys

import uvicorn
import works
from mpservice.mpserver import AsyncServer, ProcessServlet, Worker


class Work(Worker):
    def call(self, bodies):
        return works.work(bodies)


HEADERS = [(b"content-type", b"application/json")]


class App:
    """ASGI, with nothing between uvicorn and mpservice."""

    def __init__(self, call):
        self._call = call

    async def __call__(self, scope, receive, send):
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        answer = await self._call(b"".join(pieces))
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, length]})
        await send({"type": "http.response.body", "body": answer})


async def main(port):
    servlet = ProcessServlet(Work, batch_size=works.BATCH_SIZE, batch_wait_time=works.WAIT_MS / 1000)
    async with AsyncServer(servlet, capacity=1024) as server:
        quiet = {"log_level": "warning", "access_log": False}
        await uvicorn.Server(uvicorn.Config(App(server.call), port=port, lifespan="off", **quiet)).serve()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[sys.argv.index("--port") + 1])))
