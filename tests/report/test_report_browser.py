"""The report in a real browser: the viewer answers, nothing scrolls sideways, nothing is loaded, no error is logged."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl_agent.report.page import write_report
from jaxrl_agent.testing.fake_analysis import write_fake_analysis
from jaxrl_agent.testing.fake_runs import FakeSpec, write_fake_runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
TIMEOUT = 60.0  # seconds for one answer; the browser shares a busy machine

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


class Browser:
    """One tab, spoken to in the DevTools protocol over a pipe: JSON messages that end in a zero byte."""

    def __init__(self, profile: Path):
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        redirect = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
        command = ["bash", "-c", redirect, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(read_commands, write_answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._ids, self._session = b"", itertools.count(1), None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser that this object started."""
        with contextlib.suppress(OSError, RuntimeError):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are kept."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda m: m.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Load a page anew and wait for its load event."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self._wait(lambda m: m.get("method") == "Page.loadEventFired")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, as a user does."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def click(self, selector: str) -> None:
        """Scroll to an element and click on its middle with the mouse."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screen(self, width: int, height: int) -> None:
        """Give the window the size of a device."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def _wait(self, wanted) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while True:
            while b"\0" in self._buffer:
                line, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(line)
                self.events.append(message)
                if wanted(message):
                    return message
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                raise RuntimeError("the browser did not answer in time")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    tab = Browser(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    runs = write_fake_runs(folder, spec=FakeSpec(n_tasks=10, n_samples=8, updates=30))
    return write_report([f"{name}={path}" for name, path in runs.items()], folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def analysed(tmp_path_factory) -> str:
    folder, spec = tmp_path_factory.mktemp("analysed"), FakeSpec(n_tasks=10, n_samples=8, updates=30)
    runs = write_fake_runs(folder, spec=spec)
    analysis = write_fake_analysis(folder / "analysis", runs, spec, tools=True)
    items = [f"{name}={path}" for name, path in runs.items()]
    return write_report(items, folder / "report.html", analysis=analysis).as_uri()


def state(browser: Browser) -> dict[str, Any]:
    return json.loads(browser.evaluate("document.getElementById('viewer').dataset.state"))


def text(browser: Browser, selector: str) -> str:
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")


def complaints(browser: Browser) -> list[str]:
    """Console errors, warnings of the browser and uncaught exceptions since the page was opened."""
    found = []
    for event in browser.events:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            found.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            found.append(str(params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            found.append(params["entry"]["text"])
    return found


def test_the_address_names_run_trajectory_and_turn(browser, report):
    browser.screen(1280, 900)
    browser.open(f"{report}#run=grpo&trajectory=3&turn=2")
    now = state(browser)
    assert (now["run"], now["trajectory"], now["turn"]) == ("grpo", 3, 2)
    assert text(browser, "#viewer-title").startswith("grpo with ")
    assert text(browser, "#viewer-turn h4").startswith("Turn 2 of ")
    assert browser.evaluate("document.querySelector('#viewer-runs [aria-pressed=true]').textContent") == "grpo"
    assert browser.evaluate("Math.abs(document.getElementById('viewer').getBoundingClientRect().top) < 900")
    assert not complaints(browser)


def test_buttons_and_keys_step_through_turns_and_trajectories(browser, report):
    browser.screen(1280, 900)
    browser.open(f"{report}#run=budgetmix&trajectory=4&turn=1")
    browser.click("#viewer-forward")
    assert state(browser)["turn"] == 2
    browser.press("ArrowRight")
    browser.press("ArrowLeft")
    browser.click("#viewer-back")
    assert state(browser)["turn"] == 1
    assert browser.evaluate("document.getElementById('viewer-back').disabled")
    browser.click("#viewer-next")
    assert state(browser)["trajectory"] == 5
    browser.press("]")
    browser.press("[")
    browser.click("#viewer-previous")
    assert state(browser)["trajectory"] == 4
    assert "trajectory=4&turn=1" in browser.evaluate("location.hash")
    browser.click("#viewer-strip .end")
    assert text(browser, "#viewer-turn h4") == "End"
    assert browser.evaluate("document.getElementById('viewer-forward').disabled")
    assert not complaints(browser)


def test_filters_leave_only_what_they_name(browser, report):
    browser.screen(1280, 900)
    browser.open(report)
    everything = state(browser)["listed"]
    browser.click('#viewer-runs [data-run="base"]')
    of_base = state(browser)["listed"]
    assert 0 < of_base < everything
    for outcome in ("solved", "not solved"):
        browser.evaluate(
            f"(() => {{ const s = document.getElementById('viewer-outcome'); s.value = '{outcome}';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        shown = state(browser)
        assert shown["outcome"] == outcome
        assert shown["listed"] < of_base
        assert ("reached the goal" in text(browser, "#viewer-title")) == (outcome == "solved")
    assert not complaints(browser)


def test_the_same_map_leads_to_the_other_runs(browser, report):
    browser.screen(1280, 900)
    browser.open(f"{report}#run=base&trajectory=1&turn=1")
    here = text(browser, "#viewer-title").split(", map ")[1][:16]
    browser.evaluate(
        "[...document.querySelectorAll('#viewer-twins button')]"
        ".find(b => !b.textContent.startsWith('base')).id = 'twin'"
    )
    browser.click("#twin")
    there = text(browser, "#viewer-title")
    assert not there.startswith("base")
    assert there.split(", map ")[1][:16] == here
    assert not complaints(browser)


def test_episodes_of_an_analysis_show_their_condition_and_mark_the_injected_turn(browser, analysed):
    browser.screen(1280, 900)
    browser.open(f"{analysed}#run=grpo&condition=after+an+injected+error&trajectory=1&turn=1")
    assert state(browser)["listed"] == 6
    assert text(browser, "#viewer-title .condition") == "after an injected error"
    assert browser.evaluate("document.querySelectorAll('#viewer-strip .error').length") == 1
    browser.click("#viewer-strip .error")
    assert text(browser, "#viewer-turn .mishap") == "! Error turn: injected, not the policy's own."
    assert "Q gap" in text(browser, "#viewer-turn dl")
    assert "LLR" not in text(browser, "#viewer-turn dl")
    browser.press("ArrowRight")
    assert "LLR, grpo \N{MINUS SIGN} base" in text(browser, "#viewer-turn dl")
    assert not browser.evaluate("!!document.querySelector('#viewer-turn .mishap')")
    assert "same state without the error" in text(browser, "#viewer-twins")
    assert not complaints(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1280])
def test_no_analysed_page_scrolls_sideways(browser, analysed, width, scheme):
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.screen(width, 900)
    browser.open(analysed)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert not complaints(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 820, 1280])
def test_no_page_scrolls_sideways(browser, report, width, scheme):
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.screen(width, 900)
    browser.open(report)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(253, 253, 251)") == (scheme == "light")
    assert not complaints(browser)


def test_the_page_loads_nothing_but_itself(browser, report):
    browser.open(report)
    urls = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith("data:")] == [report]
