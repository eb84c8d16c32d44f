"""The backend in Redis, for many machines: one server, or a cluster.

    keys.py rows.py         where streams are, and how their rows look
    scripts/                each change of a stream as one script: atomic, and fenced where it replaces something
    servers.py              connections, and calls that find their server
    append.py read.py day_switch.py registry.py tail.py    the methods of `store.py`

Invariants, beside those of `millpond.events`:

* All keys of a stream, and the registry of its shard, are in one slot of a cluster: each change of a stream is one
  script, with what the registry says of it, so a crash leaves no half of it anywhere.
* Raw days are one Redis stream; its entries have the ids of their last events. What is before the oldest raw day is
  trimmed. A compressed segment is a list of batches; the index says which ids each of them has. A day may be partly
  compressed: `day_switch.py`.
"""

from millpond.extras import need

need("redis")

from millpond.events.redis.store import RedisStore

__all__ = ("RedisStore",)
