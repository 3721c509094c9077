"""The function as an HTTP worker, for a GPU or any machine: one or several models (`sluice worker`).

Two processes: one holds the sockets of clients and decides whose turn it is, the other computes.

    program        what the command line and the environment ask for; start, SIGTERM, end
    routes         paths to actions, failures to status codes
    repository     the models that the worker was started with: which are loaded, what they say of themselves
    served_model   one model: its life, who waits for it
    turns          whose turn it is: which requests are computed next, and together; no clock, no I/O
    link           the loop's end of the computer: its start, its death, what it is asked
    computer       the process that computes: models, and the threads that call them
    execution      one batch put to a model: who is to blame, what is measured, and how it is sent
    measurements   how long batches took, by size, as a profile document; ``energy`` is what they took of it
    metrics        the same for Prometheus
    http_server    requests over HTTP, whole and within bounds (sluice/http has the protocol); it knows nothing of models

Each stands on those below it. ``python -m sluice.lambda_fn.worker`` is what containers run.
"""
