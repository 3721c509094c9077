"""The function as an HTTP worker, for a GPU or any machine: one or several models in one process (`sluice worker`).

    program        what the command line and the environment ask for; start, SIGTERM, end
    routes         paths to actions, failures to status codes
    repository     the models that the worker was started with: which are loaded, what they say of themselves
    served_model   one model: its life, who waits for it, its threads
    turns          whose turn it is: which requests are computed next, and together; no clock, no I/O
    executions     the threads that compute
    measurements   how long batches took, by size, as a profile document; ``energy`` is what they took of it
    metrics        the same for Prometheus
    http_server    HTTP/1.1 with a bound on everything; it knows nothing of models

Each stands on those below it. ``python -m sluice.lambda_fn.worker`` is what containers run.
"""
