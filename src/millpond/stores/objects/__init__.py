"""Named objects in one place: a folder, the memory of this process, or a bucket of S3. This is their door.

    open_objects("pond/snapshots/weather")
    open_objects("memory://")
    open_objects("s3://bucket/prefix", endpoint="http://127.0.0.1:9000", allow_http=True)

`protocol.py` states what every place keeps; a driver is a module: `folder.py`, `memory.py`, `bucket.py`.
"""

from millpond.stores.objects.at_once import at_once, fetched_at_once
from millpond.stores.objects.before_bucket import (
    FolderBeforeBucket,
    begin_after,
    drop_copies,
    fetch_parts,
    forget_copies,
    hold_read,
    is_whole,
    originals,
    put_with_copy,
    read_once,
    uncopied,
)
from millpond.stores.objects.below import ObjectsBelow, StoreBelow
from millpond.stores.objects.copies import CACHE_MAX, CopiesOf
from millpond.stores.objects.folder import FolderObjects, fsync_below, put_all, read_at_once, sweep_partial
from millpond.stores.objects.memory import MemoryObjects
from millpond.stores.objects.opening import can_presign, open_objects, presign
from millpond.stores.objects.part_copies import Part, PartsRead
from millpond.stores.objects.protocol import Beside, Level, ObjectInfo, Objects, ObjectStore, TaggedObject

__all__ = (
    "CACHE_MAX", "Beside", "CopiesOf", "FolderBeforeBucket", "FolderObjects", "Level", "MemoryObjects",
    "ObjectInfo", "ObjectStore", "Objects", "ObjectsBelow", "Part", "PartsRead", "StoreBelow", "TaggedObject",
    "at_once", "begin_after", "can_presign", "drop_copies", "fetch_parts", "fetched_at_once", "forget_copies",
    "hold_read", "is_whole", "open_objects", "originals", "presign", "put_all", "put_with_copy", "read_at_once",
    "read_once", "fsync_below", "sweep_partial", "uncopied",
)  # fmt: skip
