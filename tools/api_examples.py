# Examples of docs/reference/, by the names they stand under. tests/docs/test_reference.py runs each page from top to
# bottom and compares what `print` writes with the comment beside it.
# ruff: noqa: E402

# == millpond.open
import millpond

pond = millpond.open("pond")
# == Pond.create_map
pond.create_map("weather", kind="temporal_state", value="temp double, wind_speed double", condense="30d")
pond.create_map("countries", kind="ranged_state", value="string")
pond.create_map("airborne", kind="session")
# == Pond.map
weather = pond.map("weather")
print(weather)  # Map('weather', kind='temporal_state', value='temp double, wind_speed double', scheme='auto')
# == Pond.maps
print([found.name for found in pond.maps()])  # ['airborne', 'countries', 'weather']
# == Pond.alter_map
pond.alter_map("weather", retain="10y")
# == Pond.load_files
from pathlib import Path

Path("blocks.csv").write_text("first,last,country\n16777216,16777471,AU\n16777472,16778239,CN\n")
result = pond.load_files(
    "blocks.csv", map="countries", columns={"key_start": "first", "key_end": "last", "value": "country"}
)
print(result.rows, result.maps)  # 2 {'countries': 2}
# == Map.load
result = pond.map("weather").load(
    [
        {"key": "JFK", "effective_time": "2013-02-08T17:00Z", "temp": 33.1, "wind_speed": 20.7},
        {"key": "JFK", "effective_time": "2013-02-08T18:00Z", "temp": 32.0, "wind_speed": 24.2},
    ]
)
print(result.rows)  # 2
# == Map.get
print(weather.get("JFK", at="2013-02-08T18:42Z"))  # {'temp': 32.0, 'wind_speed': 24.2}
print(weather.get("JFK", at="2013-02-08T12:00Z"))  # None
print(pond.map("countries").get(16777500))  # CN
# == Map.lookup
import pyarrow as pa

keys = pa.array(["JFK", "EWR"])
print(weather.lookup(keys, at="2013-02-08T18:42Z").to_pylist())  # [{'temp': 32.0, 'wind_speed': 24.2}, None]
# == Map.scan
table = weather.scan("key = 'JFK' and temp > 33", columns=["key", "temp"]).read_all()
print(table.to_pylist())  # [{'key': 'JFK', 'temp': 33.1}]
# == Map.snapshot
with weather.snapshot(window=("2013-02-08T00:00Z", "2013-02-09T00:00Z")) as day:
    print(day.lookup(["JFK"], at="2013-02-08T17:59Z").to_pylist())  # [{'temp': 33.1, 'wind_speed': 20.7}]
# == Snapshot.take
with weather.snapshot() as snapshot:
    found = snapshot.find(["JFK", "EWR"], at="2013-02-08T18:42Z")
    print(snapshot.take(found, "temp").to_pylist())  # [32.0, None]
# == Map.retain
print(weather.retain(before="2013-02-08T17:30Z").rows_removed)  # 1
# == Map.info
print(weather.info()["rows"])  # 1
# == Errors
try:
    pond.map("wether")
except millpond.NotFound as error:
    print(error.kind, "-", error.hint)  # map_not_found - there is: weather

pond.close()
# == mp.start
import millpond
from millpond import spark as mp

session = mp.start("local[2]")
# == mp.register
mp.register(session, pond="pond")
# == mp.load
pond = millpond.open("pond")
pond.create_map("weather", kind="temporal_state", value="temp double")
hours = session.createDataFrame([("JFK", "2013-02-08T18:00Z", 32.0)], "key string, effective_time string, temp double")
print(mp.load(hours, map="weather").rows)  # 1
# == mp.enrich
flights = session.sql("select 'UA1545' as flight, 'JFK' as origin, timestamp'2013-02-08 18:42:00' as departure")
enriched = mp.enrich(flights, map="weather", key="origin", at="departure")
print(enriched.select("flight", "weather.temp").first())  # Row(flight='UA1545', temp=32.0)
# == mp.Lookup
both = [
    mp.Lookup("weather", key="origin", at="departure", into="then"),
    mp.Lookup("weather", key="origin", into="now"),
]
print(mp.enrich(flights, both).columns)  # ['flight', 'origin', 'departure', 'then', 'now']

pond.close()
session.stop()
