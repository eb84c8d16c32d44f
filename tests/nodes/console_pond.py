"""A pond with one or more of everything, under names that would be tags, and the pages that show it."""

from __future__ import annotations

from urllib.parse import urlencode

from millpond.events.event import NewEvent
from millpond.nodes.tokens import hash_token
from millpond.server.console.loads import loads_of
from millpond.server.console.pages import PAGE_ROWS
from tests.nodes.conftest import BEGIN, Served

SCRIPT = "<script>alert(1)</script>"
HOSTILE = [SCRIPT, "\u202eevil \u05e9\u05dc\u05d5\u05dd", "k" * 1_000, "a/b?c=d&e#f", '" onload="alert(1)']
RIGHTS = {
    "everything": {"read": ["*"]}, "operator": {"admin": ["*"]}, "ours": {"read": ["ours"]},
    "etl": {"read": ["stream:etl/*"]}, "flights": {"read": ["repo:flights"]},
}  # fmt: skip
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]


def fill(node: Served) -> None:
    """One or more of everything, with names that would be tags."""
    pond = node.pond
    layered = pond.create_map("ours", kind="temporal_state", value="double", store="layers")
    for day in (1, 2):
        layered.load([{"key": "JFK", "effective_time": BEGIN + day, "value": float(day)}], source=SCRIPT)
    added = pond.create_map("added", kind="metric", key="tags", resolution="1 hour", store="layers")
    added.alerts.add("count > 0", name="many")
    added.load([{"tags": {"host": SCRIPT}, "time": BEGIN - ago * 3_600_000, "value": ago} for ago in (9, 8, 2)])
    with pond.branch("fix", source="main") as branch:
        branch.map("ours").load([{"key": "JFK", "effective_time": BEGIN, "value": 9.0}])
        branch.create_map("made", kind="state", value="string")
        branch.map("made").load([{"key": key, "value": key} for key in HOSTILE])
    pond.repository("pond").create_tag("v1", "main")
    pond.create_map("theirs", kind="state").load([{"key": key, "value": key} for key in HOSTILE])
    pond.create_map("ranges", kind="ranged_state", value="string").load([{"key_start": 1, "key_end": 9, "value": "DE"}])
    pond.repositories.create("flights")
    main = pond.repository("flights").branch("main")
    main.put(f"data/{SCRIPT}.csv", b"a")
    main.commit(SCRIPT)
    main.put("data/b.csv", b"bb")
    main.commit("second")
    for job_set in HOSTILE[:3]:
        events = [NewEvent(BEGIN + place, SCRIPT.encode(), "failed", {"job_id": "j"}) for place in range(PAGE_ROWS + 5)]
        pond.events.append("etl", job_set, events)

    for name in ("ours", "theirs"):  # what is compiled, or imported, at the first question
        pond.map(name).get("JFK")
        pond.map(name).scan().read_all()
    pond.sql("select key from theirs")
    names = ("added", "ours", "ranges", "theirs")
    node.until(lambda: all(loads_of(node.node, names).values()) and len(loads_of(node.node, ["ours"])["ours"]) > 1)


PATHS = [
    "/", "/console/maps", "/console/versions", "/console/events", "/console/runs", "/console/workflows",
    "/console/workflows/tasks", "/console/jobs", "/console/sql", "/console/find?q=nothing+here",
]  # fmt: skip


def deep_paths() -> list[str]:
    """The pages of single things."""
    streams = [urlencode({"queue": "etl", "job_set": job_set}) for job_set in HOSTILE[:3]]
    return [
        "/console/maps/ours?key=JFK", "/console/maps/ranges?key=5", "/console/maps/ours?key=JFK&at=nonsense",
        *(f"/console/maps/theirs?{urlencode({'key': key})}" for key in HOSTILE),
        "/console/versions/pond", "/console/versions/flights", "/console/versions/flights?ref=main~1",
        "/console/versions/flights/objects?ref=main", "/console/versions/flights/objects?ref=main&prefix=data/",
        f"/console/versions/flights/object?{urlencode({'ref': 'main', 'path': f'data/{SCRIPT}.csv'})}",
        "/console/maps/added?when=count+%3E+0", "/console/events/stream?queue=millpond&job_set=alerts/added",
        "/console/maps/made?ref=fix&where=key+%3C%3E+'a'", "/console/versions/pond/diff?left=v1",
        "/console/maps?ref=v1",
        "/console/maps/ours?where=value+%3E+1", "/console/maps?ref=fix", "/console/maps/ours?ref=fix&key=JFK",
        "/console/maps/ours?ref=main~1", f"/console/maps/added?{urlencode({'key': f'host={SCRIPT}'})}",
        "/console/versions/pond/diff?left=fix", "/console/versions/pond/diff?left=main&right=fix&three_dots=true",
        "/console/versions/flights/diff?left=main~1&right=main", "/console/versions/pond/diff?left=main&right=fix",
        "/console/versions/pond/diff?left=main&right=fix&map=ours",
        *(f"/console/events/stream?{stream}" for stream in streams),
        *(f"/console/events/stream?{stream}&kind=failed&job=j&after=" for stream in streams),
        "/console/sql?q=select+key+from+theirs+order+by+key", "/console/sql?q=drop+table+ours",
    ]  # fmt: skip
