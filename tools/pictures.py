"""Writes docs/pictures/console-*.webp: pages of the console over the demo's data, as Chromium shows them.

PYTHONPATH=. python tools/pictures.py            names the pictures
PYTHONPATH=. python tools/pictures.py --write    writes docs/pictures/*.webp

Each picture shows what a node answers that really did it: loads on the hours of a day, a correction on a branch, runs
of a pipeline by a worker, one of which fails. Texts and figures are the same each time, but for ids.
`tools/setup browser demo` installs what it needs.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
from playwright.sync_api import Browser

from millpond.clock import ManualClock
from millpond.demo.corrections import correct_weather
from millpond.demo.sources import prepare
from tests.browser import chromium
from tests.nodes.conftest import Served
from tests.nodes.test_console_actions import Visitor

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
BYTES_MAX = 60_000
BEGIN = 1_360_310_400_000
"""2013-02-08, the day of a snow storm in New York."""
HOUR_MS = 3_600_000
DAYS = ("2013-02-09", "2013-02-10", "2013-02-11")
_TO_WEBP = """async (source) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", 0.7);
}"""


@dataclass(frozen=True)
class Picture:
    """A page, its size and theme, and what is said below it."""

    name: str
    path: str
    theme: str = "light"
    height: int = 800


PICTURES = (
    Picture("overview", "/"),
    Picture("map", "/console/maps/weather?key=JFK&at=2013-02-08T18:00Z"),
    Picture("diff", "/console/versions/pond/diff?left=main~1&right=main", "dark"),
    Picture("run", "/console/runs/run?id={failed}", height=900),
    Picture("workflow", "/console/workflows/workflow?name=storms", "dark", 900),
    Picture("sql", "/console/sql?q=select+key,+avg(temp)+as+mean,+max(wind_speed)+as+wind+from+weather+group+by+key"),
)
MAPS = {
    "airlines": ("state", "string", "select carrier as key, name as value from '{}/airlines.csv'"),
    "airports": ("state", "name string, lat double, lon double, altitude long",
                 "select faa as key, name, lat, lon, alt as altitude from '{}/airports.csv'"),
    "planes": ("state", "manufacturer string, model string, seats long",
               "select tailnum as key, manufacturer, model, seats from '{}/planes.csv'"),
    "weather": ("temporal_state", "temp double, wind_speed double, precip double, visib double",
                ("select origin as key, time_hour::timestamptz as effective_time, temp, wind_speed, precip, visib "
                "from read_csv('{}/weather.csv', nullstr='NA') where time_hour < '2013-02-09'")),
}  # fmt: skip
PIPELINE = '''
from millpond.pipelines import check, load, notify, pipeline, python, sql


def windiest(rows):
    return {"rows": rows}


@pipeline(schedule="0 6 * * *", time_zone="America/New_York")
def storms(day: str = "2013-02-08", most: float = 130.0):
    """Storms of a day, told to whom it concerns."""
    weather = load(f"weather-{day}.csv", map="weather")
    check("select * from {weather} where temp > {most}", weather=weather, most=most, retries=0)
    windy = sql("select key, max(wind_speed) as wind from {weather} group by key", weather=weather)
    answer = python(windiest, windy.rows)
    notify("stream:weather/storms", rows=windy.rows, answer=answer)
'''


def fill(node: Served, folder: Path) -> None:
    """The demo's maps, loaded over a day."""
    prepare(folder)
    with duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        for name, (kind, value, query) in MAPS.items():
            store = "layers" if name == "weather" else "shard"
            opened = node.pond.create_map(name, kind=kind, value=value, store=store)
            rows = database.sql(query.format(folder)).to_arrow_table()
            parts = 8 if name == "weather" else 2
            size = -(-rows.num_rows // parts)
            for start in range(0, rows.num_rows, size):
                opened.load(rows.slice(start, size), source=f"{name}.csv")
                node.clock.advance(HOUR_MS)


@contextmanager
def ticking(node: Served) -> Iterator[None]:
    """Let the node's clock go as fast as that of the worker, which is a real one."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.02):
            node.clock.advance(20)

    ticks = threading.Thread(target=tick)
    ticks.start()
    try:
        yield
    finally:
        over.set()
        ticks.join()


@contextmanager
def working(node: Served, folder: Path) -> Iterator[str]:
    """The address of the node for workflows, where a worker does the steps of pipelines."""
    server = f"127.0.0.1:{node.node.settings.server.grpc_port}"
    command = [sys.executable, "-m", "millpond", "worker", "millpond.pipelines", "--server", server, "--pond", node.url]
    worker = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        yield server
    finally:
        worker.terminate()
        worker.wait()


def run_pipeline(node: Served, folder: Path) -> str:
    """Deploy a pipeline and run it for some days; the id of the run whose check finds rows."""
    (folder / "storms.py").write_text(PIPELINE)
    with working(node, folder) as server:

        def command(*words: str) -> None:
            subprocess.run([sys.executable, "-m", "millpond", *words, "--server", server], check=True, cwd=folder,
                           stdout=subprocess.DEVNULL)  # fmt: skip

        def ended() -> bool:
            runs = Visitor(node).data("/console/runs")["runs"]
            return len(runs) == len(DAYS) + 1 and all(run["status"] not in ("STARTING", "RUNNING") for run in runs)

        command("pipeline", "deploy", "storms.py")
        for day in DAYS:
            weather = "copy (select origin as key, time_hour as effective_time, temp, wind_speed, precip, visib from "
            rows = f"read_csv('{folder}/weather.csv', nullstr='NA') where time_hour::date = '{day}') "
            duckdb.execute(f"{weather}{rows} to '{folder}/weather-{day}.csv'")
            command("run", "start", "storms", "--input", f"day={day}", "--id", f"storms-{day}")
        command("run", "start", "storms", "--input", f"day={DAYS[0]}", "--input", "most=20", "--id", "storms-checked")
        while not ended():
            threading.Event().wait(0.1)
    return "storms-checked"


def main() -> None:
    """Write the pictures, or name them."""
    if "--write" not in sys.argv:
        print("\n".join(f"console-{picture.name}.webp" for picture in PICTURES))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        place = {"server_data": str(folder / "pond"), "server_port": 0, "server_grpc_port": 0}
        node = Served(ManualClock(BEGIN), events_reports=True, **place)
        try:
            with ticking(node):
                fill(node, folder)
                failed = run_pipeline(node, folder)
                correct_weather(node.pond, folder)
            with chromium() as browser:
                for picture in PICTURES:
                    data = taken(browser, node.url, picture, failed)
                    assert len(data) <= BYTES_MAX, (picture.name, len(data))
                    (FOLDER / f"console-{picture.name}.webp").write_bytes(data)
        finally:
            node.close()


def taken(browser: Browser, url: str, picture: Picture, failed: str) -> bytes:
    """A page as WebP, which Chromium makes of its own picture."""
    size = {"width": 1_200, "height": picture.height}
    context = browser.new_context(base_url=url, viewport=size, color_scheme=picture.theme)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto(picture.path.format(failed=failed))
        shot = base64.b64encode(page.screenshot()).decode()
        page.goto("about:blank")
        made = page.evaluate(_TO_WEBP, f"data:image/png;base64,{shot}")
        return base64.b64decode(made.partition(",")[2])
    finally:
        context.close()


if __name__ == "__main__":
    main()
