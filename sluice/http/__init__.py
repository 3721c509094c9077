"""HTTP/1.1 as the buffer and the worker serve it: a bound on everything, and nothing of what is served.

connection   one connection as its server sees it: bytes in, records out; no clock, no I/O
server       sockets, the clock, the drain
pieces       a body, or an answer, as it comes
machine      memory and CPUs of this process
room         how many bytes and connections may be held at once
"""
