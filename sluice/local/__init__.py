"""The whole system on one machine, with nothing of AWS.

    redis_server                        an embedded Redis
    lambda_runtime, environments,       the Invoke API, and the processes of `awslambdaric` behind it
    functions, bootstrap
    stack                               both, and the buffer, as processes of a test or of the demo
    networks, fleet_networks,           models to serve, and their profiles
    fleet_profiles
    replay                              requests when a trace says
    demo                                all of it, ending in one table

``RedisServer`` alone is exported: the rest is imported from its modules, as every function's process imports this package and is
to start as quickly as on AWS.
"""

from __future__ import annotations

from sluice.local.redis_server import RedisServer, RedisServerError

__all__ = ["RedisServer", "RedisServerError"]
