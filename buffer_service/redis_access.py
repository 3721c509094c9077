"""Whether a Redis lets this deployment in, asked once at the start: a password that is refused then is a mistake, and no outage."""

from __future__ import annotations

from redis.crc import key_slot
from redis.exceptions import NoPermissionError, ResponseError

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_servers import NotLetIn, Servers
from sluice.buffer_service.redis_store import PROBE


async def refusal(url: str, namespace: str = "") -> str:
    """Why it does not, as Redis says it; ``""`` where it does, or where it is away, which passes.

    Of a ``namespace`` that is given, whether scripts may write there.
    """
    servers, key = Servers(url), f"{namespace}:{{start}}:probe"
    try:
        await servers.call(key_slot(key.encode()), ("EVAL", PROBE, 1, key, "") if namespace else ("INFO", "replication"))
    except NotLetIn as error:
        return error.said
    except NoPermissionError as error:
        return str(error) if namespace else ""
    except (StoreUnavailable, ResponseError):
        pass
    finally:
        await servers.close()
    return ""
