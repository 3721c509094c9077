"""SLO-aware batching for serverless inference.

    batching         the policy table, the rule that reads it, the documents the rooms exchange
    lambda_fn        the function: a model behind the wire contract
    buffer_service   the live buffer
    profiler         measures functions
    optimizer        traces and fits, prediction, simulation, plans
    local            the whole system on one machine
    cli              the command line

``lambda_fn``, ``buffer_service``, ``profiler`` and ``optimizer`` lie at the top of the repository, where AWS tools and readers look
for them, and are links here.
"""
