"""Chromium without a screen, and what a test asks of a page in it: faults, words of assistive tools, its width."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from playwright.sync_api import Browser, Page, sync_playwright

__all__ = ("Watched", "chromium")

_AXE = Path(__file__).parent / "data" / "axe-core-4.14.1.zip"
_AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_GRAVE = ("serious", "critical")
_ASK_AXE = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(
  (rule) => [rule.impact, rule.id, rule.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))])"""
_WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, which `tools/setup browser` installs."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert program is not None, "no Chromium is here: tools/setup browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        try:
            yield browser
        finally:
            browser.close()


@cache
def _axe() -> str:
    """The script of axe-core, which looks for what keeps people from using a page."""
    with ZipFile(_AXE) as archive:
        script = archive.read("axe.min.js")
    assert hashlib.sha256(script).hexdigest() == _AXE_SHA256
    return script.decode()


class Watched:
    """A page whose errors are noted: of scripts, and of what the policy of content refuses."""

    def __init__(self, page: Page) -> None:
        self.page, self.errors, self.dialogs = page, list[str](), list[str]()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if "Security Policy" in said.text else None)
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    @property
    def too_wide(self) -> list[str]:
        """The fault of a page that is wider than its window."""
        wider = self.page.evaluate(_WIDER)
        return [f"{wider} px wider than {self.page.viewport_size}"] if wider > 0 else []

    @property
    def faults(self) -> list[object]:
        """Everything that is wrong with the page as it is now."""
        page = self.page
        if not page.evaluate("() => 'axe' in window"):
            page.evaluate(_axe())
        grave = [violation for violation in page.evaluate(_ASK_AXE) if violation[0] in _GRAVE]
        return [*self.errors, *self.dialogs, *self.too_wide, *grave]
