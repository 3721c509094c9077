"""The whole system on one machine, with nothing of AWS.

    redis_server                        an embedded Redis
    lambda_runtime, environments,       the Invoke API, and the processes of `awslambdaric` behind it
    functions, bootstrap
    stack                               both, and the buffer, as processes of a test or of the demo
    networks, fleet_networks,           models to serve, and their profiles
    fleet_profiles
    replay                              requests when a trace says
    demo                                all of it, ending in one table

Nothing is exported here, and each is imported from its module: every function's process imports this package, and what it
imported would be counted as the cold start of the function.
"""
