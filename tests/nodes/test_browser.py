"""The console in Chromium: what assistive tools find, narrow and wide windows, keys, hostile names, a dead node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from millpond.events.event import NewEvent
from millpond.server.console.loads import loads_of
from millpond.server.console.pages import COOKIE
from tests.browser import Watched, chromium
from tests.nodes.conftest import BEGIN, Served
from tests.nodes.console_pond import HOSTILE, PATHS, SCRIPT, TOKENS, deep_paths, fill
from tests.nodes.test_console_actions import TOKENS as OWNERS
from tests.nodes.test_console_actions import Visitor, commit_both_sides, went_to
from tests.nodes.test_console_runs import serve_runs
from tests.nodes.test_console_workflows import PAGE as WORKFLOWS
from tests.nodes.test_console_workflows import define
from tests.rings.sampling import drawn

pytestmark = pytest.mark.sample(6, of="file")

THEMES = ("light", "dark")
WIDTHS = (2_560, 1_280, 375)
DROPPED = """([name, text]) => {
  const dropped = new DataTransfer();
  dropped.items.add(new File([text], name));
  return dropped;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@contextmanager
def window(
    browser: Browser, node: Served, width: int = 1_280, theme: str = "light", *, scripts: bool = True
) -> Iterator[Watched]:
    """A window of its own, with no cookie."""
    context = browser.new_context(
        base_url=node.url, viewport={"width": width, "height": 800}, color_scheme=theme, java_script_enabled=scripts,  # type: ignore[arg-type]
    )  # fmt: skip
    try:
        yield Watched(context.new_page())
    finally:
        context.close()


def test_pages_are_for_everybody_in_both_themes_and_at_every_width(
    browser: Browser, serve: Callable[..., Served]
) -> None:
    node = serve(events_reports=True)
    fill(node)
    views = drawn([(path, theme) for path in [*PATHS, *deep_paths()] for theme in THEMES], 2)
    faults: list[object] = []
    for theme in THEMES:
        with window(browser, node, theme=theme) as shown:
            for path in (path for path, wanted in views if wanted == theme):
                shown.page.goto(path)
                for width in WIDTHS:
                    shown.page.set_viewport_size({"width": width, "height": 800})
                    faults += [(path, theme, wider) for wider in shown.too_wide]
                faults += [(path, theme, fault) for fault in shown.faults]
    assert faults == [], faults


def test_keys_lead_to_pages_and_to_the_box_that_finds(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)
    with window(browser, node) as shown:
        page = shown.page
        page.goto("/")
        page.keyboard.press("Tab")
        expect(page.locator("a.skip")).to_be_focused()
        for key, path in (("m", "/console/maps"), ("e", "/console/events"), ("o", "/")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.wait_for_url(f"**{path}")
        page.keyboard.press("/")
        expect(page.locator("#find")).to_be_focused()
        page.keyboard.type("gm/ours")  # keys are text here
        expect(page.locator("#find")).to_have_value("gm/ours")
        page.locator("#find").fill("ours")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/maps/ours")
        page.get_by_label("key", exact=True).fill("JFK")
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text("2.0")


def test_a_slider_of_time_asks_again(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)
    with window(browser, node) as shown:
        page = shown.page
        page.goto("/console/maps/ours?key=JFK")
        expect(page.locator(".answer")).to_contain_text("2.0")
        expect(page.get_by_label("time of known_at")).to_be_visible()
        slider = page.get_by_label("time of at", exact=True)
        slider.evaluate("(own) => { own.value = own.min; own.dispatchEvent(new Event('input')) }")
        slider.dispatch_event("change")
        page.wait_for_url("**&at=20*")
        expect(page.locator(".answer")).to_contain_text("1.0")
        assert shown.faults == []


def test_hostile_names_are_text(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    fill(node)
    with window(browser, node, 375) as shown:
        for name in HOSTILE:
            shown.page.goto(f"/console/maps/theirs?{urlencode({'key': name})}")
            expect(shown.page.locator(".answer bdi")).to_have_text(name)
        shown.page.goto("/console/events")
        shown.page.get_by_role("link", name=SCRIPT).click()
        expect(shown.page.locator("h1")).to_have_text(SCRIPT)
        assert shown.errors == shown.dialogs == []


def test_a_page_says_that_its_node_died_and_goes_on_when_it_is_back(
    browser: Browser, serve: Callable[..., Served]
) -> None:
    node = serve(events_reports=True)
    node.pond.events.append("etl", "night", [NewEvent(BEGIN, b"first", "new", {})])
    port, data = node.node.settings.server.port, node.pond.folder
    with window(browser, node) as shown:
        page = shown.page
        page.clock.install()
        with page.expect_response("**/console/events/live*"):
            page.goto("/console/events/stream?queue=etl&job_set=night")
        expect(page.locator("#lost")).to_be_hidden()
        node.close()
        expect(page.locator("#lost")).to_be_visible()
        assert shown.faults == []
        again = serve(server_port=port, server_data=str(data), events_reports=True)
        page.clock.fast_forward("01:00")
        expect(page.locator("#lost")).to_be_hidden()
        again.pond.events.append("etl", "night", [NewEvent(BEGIN + 1, b"second", "new", {})])
        expect(page.get_by_text("second")).to_be_visible()


@pytest.mark.sample(1)
@pytest.mark.parametrize("scripts", [False, True])
def test_a_file_is_dropped_looked_at_and_published(
    scripts: bool, browser: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    node = serve()
    node.pond.create_map("ours", kind="state", value="double", store="layers").load([{"key": SCRIPT, "value": 1.0}])
    file = tmp_path / "new.csv"
    file.write_text(f"key,value\n{SCRIPT},2.0\n", encoding="utf-8")
    with window(browser, node, 375, "dark", scripts=scripts) as shown:
        page = shown.page
        page.goto("/console/maps/ours")
        if scripts:
            dropped = page.evaluate_handle(DROPPED, [file.name, file.read_text(encoding="utf-8")])
            page.get_by_role("heading", level=1).dispatch_event("drop", {"dataTransfer": dropped})
        else:
            page.get_by_label("drop it on the page").set_input_files(file)
            page.get_by_role("button", name="Load on a branch").click()
        expect(page.get_by_role("cell", name=SCRIPT)).to_be_visible()
        assert node.pond.map("ours").get(SCRIPT) == 1.0
        assert not scripts or shown.faults == []
        page.get_by_role("button", name="Publish").click()
        page.wait_for_url("**/console/maps/ours")
        assert node.pond.map("ours").get(SCRIPT) == 2.0
        page.get_by_text("Drop the map").first.click()
        page.get_by_label("type its name").fill("ours")
        page.get_by_role("button", name="Drop the map").click()
        page.wait_for_url("**/console/maps")
        expect(page.get_by_role("link", name="ours")).to_have_count(0)
        assert shown.errors == shown.dialogs == []


def test_a_map_on_a_branch_is_made_loaded_merged_and_restored(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve()
    node.pond.create_map("ours", kind="state", value="double", store="layers").load([{"key": "a", "value": 1.0}])
    node.pond.refs.create_branch("fix")
    with window(browser, node, 375, "dark") as shown:
        page = shown.page
        page.goto("/console/versions/pond?ref=fix")
        page.get_by_role("link", name="Maps at this ref").click()
        page.get_by_text("Make a map").first.click()
        page.get_by_label("name", exact=True).fill("made")
        page.locator("select[name=kind]").select_option("state")
        assert shown.faults == []
        page.get_by_role("button", name="Make the map").click()
        page.wait_for_url("**/console/maps/made?ref=fix")
        dropped = page.evaluate_handle(DROPPED, ["new.csv", f"key,value\n{SCRIPT},b\n"])
        page.get_by_role("heading", level=1).dispatch_event("drop", {"dataTransfer": dropped})
        page.wait_for_url("**/diff?*")
        expect(page.get_by_role("cell", name=SCRIPT)).to_be_visible()
        assert shown.faults == []
        page.goto("/console/maps/ours?ref=fix")
        page.get_by_text("Drop the map").first.click()
        page.get_by_label("type its name").fill("ours")
        page.get_by_role("button", name="Drop the map").click()
        page.wait_for_url("**/console/maps?ref=fix")
        page.goto("/console/versions/pond?ref=fix")
        page.get_by_text("Change the repository").click()
        page.get_by_label("into").fill("main")
        page.get_by_role("button", name="Merge this branch").click()
        page.wait_for_url("**/console/versions/pond?ref=main")
        assert [own.name for own in node.pond.maps()] == ["made"]
        page.goto("/console/maps/ours?ref=main~1")
        page.get_by_role("button", name="Let the map be").click()
        page.wait_for_url("**/console/maps/ours")
        assert node.pond.map("ours").get("a") == 1.0 and node.pond.map("made").get(SCRIPT) == "b"
        assert shown.errors == shown.dialogs == []


def test_runs_and_merges_are_decided_in_pages_for_everybody(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    commit_both_sides(node)
    with window(browser, node, 375, "dark") as shown:
        page = shown.page
        page.goto("/console/versions/flights?ref=fix")
        page.get_by_text("Change the repository").click()
        page.get_by_role("button", name="Merge this branch").click()
        assert shown.faults == []
        page.get_by_label(SCRIPT).select_option("fix")
        page.get_by_label("further conflicts").select_option("main")
        page.get_by_role("button", name="Merge with these choices").click()
        page.wait_for_url("**/console/versions/flights?ref=main")
        assert node.pond.repository("flights").branch("main").get(f"{SCRIPT}.csv") == b"source"
        page.goto("/console/runs")
        page.get_by_role("link", name="Start a run").click()
        page.get_by_role("link", name="asks").click()
        page.get_by_label("count").fill("3")
        assert shown.faults == []
        page.get_by_role("button", name="Start the run").click()
        page.get_by_label(SCRIPT).fill("true")
        assert shown.faults == []
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_text("COMPLETED").first).to_be_visible()


def test_a_run_that_goes_on_is_shown_anew_until_it_ended(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    visitor, tenant = Visitor(node), "?tenant=default"
    start = visitor.press("/console/runs/start?workflow=asks", f"/console/runs/start{tenant}", **{"input.count": "3"})
    run = went_to(start)
    with window(browser, node) as shown, window(browser, node) as listed:
        for page in (shown.page, listed.page):
            page.clock.install()
        shown.page.goto(run)
        listed.page.goto("/console/runs")
        expect(listed.page.get_by_role("cell", name="RUNNING")).to_be_visible()
        shown.page.get_by_label("Why").fill("not yet sent")
        requests: list[str] = []
        shown.page.on("request", lambda request: requests.append(request.url))
        shown.page.clock.fast_forward("00:05")
        assert requests == []
        expect(shown.page.get_by_label("Why")).to_have_value("not yet sent")
        went_to(visitor.press(run, f"/console/runs/answer{tenant}", **{"input.ok": "true"}))
        shown.page.get_by_role("heading", level=1).click()
        for page in (shown.page, listed.page):
            page.clock.fast_forward("00:05")
            expect(page.locator("#run, #runs").get_by_text("COMPLETED").first).to_be_visible()
            expect(page.locator("[hx-trigger]")).to_have_count(0)
            expect(page.locator("#lost")).to_be_hidden()
        assert shown.faults == listed.faults == []


def test_a_run_that_goes_on_asks_who_looks_once_the_token_is_gone(
    browser: Browser, serve: Callable[..., Served]
) -> None:
    node = serve_runs(serve, server_tokens=OWNERS)
    start = "/console/runs/start"
    form = (f"{start}?workflow=asks", f"{start}?tenant=default")
    run = went_to(Visitor(node, "owner").press(*form, **{"input.count": "3"}))
    with window(browser, node) as shown:
        page = shown.page
        page.clock.install()
        page.context.add_cookies([{"name": COOKIE, "value": "owner", "url": node.url}])
        page.goto(run)
        expect(page.locator("#run").get_by_text("RUNNING").first).to_be_visible()
        page.context.clear_cookies()
        page.clock.fast_forward("00:05")
        page.wait_for_url("**/console/sign-in?next=*")
        page.get_by_label("Token").fill("owner")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{run}")
        assert shown.faults == []


def test_workflows_are_for_everybody_and_switched_in_pages(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    faults: list[object] = []
    paths = [WORKFLOWS, f"{WORKFLOWS}/tasks", *(f"{WORKFLOWS}/workflow?name={name}" for name in ("nightly", "hostile"))]
    for theme, width in zip(THEMES, (1_280, 375), strict=True):
        with window(browser, node, width, theme) as shown:
            for path in drawn(paths, 1, name=theme):
                shown.page.goto(path)
                faults += [(path, theme, fault) for fault in shown.faults]
            page = shown.page
            page.goto(WORKFLOWS)
            page.get_by_role("link", name="tries").click()
            expect(page.locator("svg.flow rect").first).to_be_visible()
            page.get_by_role("button", name="Pause").click()
            expect(page.get_by_text("paused")).to_be_visible()
            page.get_by_role("button", name="Resume").click()
            expect(page.get_by_text("2026-01-01 03:00+01:00")).to_be_visible()
            page.get_by_role("button", name="Run now").click()
            expect(page.locator("svg.flow rect.now")).to_be_attached()
            faults += [(page.url, theme, fault) for fault in shown.faults]
    with window(browser, node, 375) as shown:
        page = shown.page
        page.goto(f"{WORKFLOWS}/workflow?name=nightly#backfill")
        page.get_by_text("Fill back").click()
        page.get_by_label("from").fill("2026-01-01")
        page.get_by_label("to", exact=True).fill("2026-01-03")
        page.get_by_role("button", name="Start the first runs").click()
        expect(page.get_by_text("open", exact=True)).to_have_count(3)
        faults += shown.faults
    assert faults == [], faults


def test_the_first_page_shows_what_comes_while_it_is_open(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    ours = node.pond.create_map("ours", kind="state", value="double", store="layers")
    with window(browser, node) as shown:
        page = shown.page
        page.goto("/")
        expect(page.get_by_text("No loads that you may see.")).to_be_visible()
        ours.load([{"key": "JFK", "value": 1.0}, {"key": "LGA", "value": 2.0}], source=SCRIPT)
        node.until(lambda: loads_of(node.node, ["ours"])["ours"])
        node.until(lambda: page.get_by_role("cell", name=SCRIPT).is_visible())
        expect(page.get_by_text("2 rows in 1 load")).to_be_visible()
        expect(page.locator("svg.bars title, svg.bars").first).to_be_attached()
        assert shown.faults == []


def test_signing_in_by_a_form(browser: Browser, serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    with window(browser, node) as shown:
        page = shown.page
        page.goto("/console/maps?prefix=a")
        assert shown.faults == []
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("Token").fill("ours")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/maps?prefix=a")
        expect(page.get_by_role("link", name="Jobs")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
