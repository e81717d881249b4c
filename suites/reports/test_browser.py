"""The page in a real browser, headless: no error, no request, it fits a phone, search and sorting work.

Needs Chromium and its driver (Debian's packages `chromium` and `chromium-driver`) and selenium; skipped without them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cemverify.results.envelope import write
from reports.__main__ import main
from suites.reports.examples import a_check, a_claims, a_language, a_property, a_recursion, violated

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
ALL = "everything"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
    pytest.mark.skipif(DRIVER is None, reason="there is no chromedriver on this machine"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, which notes what it asks for and what goes wrong."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


HELD = [a_property(f"gradient/layer/case-{i}", margin=i / 20) for i in range(12)]
KINDS: Mapping[str, Callable[[], Any]] = {
    "right": lambda: a_check("right", HELD),
    "wrong": lambda: a_check("wrong", [violated("gradient/attention/plain"), *HELD]),
    "recursion": a_recursion,
    "language": a_language,
    "claims": a_claims,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind of result, and one with everything on it, a long hostile name among it."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = a_check("<script>document.title='broken'</script>" + "long" * 2500, HELD)
    contents = {
        **{name: [make()] for name, make in KINDS.items()},
        ALL: [hostile, *(make() for make in KINDS.values())],
    }
    for name, results in contents.items():
        for number, content in enumerate(results):
            write(folder / name / f"{number}.json", content)
        assert main(["page", str(folder / name), "-o", str(folder / f"{name}.html")]) == 0
    return {name: folder / f"{name}.html" for name in contents}


def opened(browser: Any, page: Path, width: int) -> None:
    """Opens the page at a width; the notes of what was before are forgotten."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())


def test_every_page_opens_and_the_whole_one_can_be_used(browser: Any, pages: dict[str, Path]) -> None:
    """One test, for every worker that had one would start a browser and draw the pages."""
    for width in (390, 1400):
        assert [fault for page in pages.values() for fault in faults_of(browser, page, width)] == []
        begins_with_the_answer_and_asks_for_nothing(browser, pages[ALL], width)
    tables_are_searched_and_sorted(browser, pages[ALL])
    is_readable_without_javascript(browser, pages[ALL])


def faults_of(browser: Any, page: Path, width: int) -> list[Any]:
    """What is wrong with a page: it opens with an error, or does not fit."""
    opened(browser, page, width)
    assert browser.title.startswith("cemverify")
    faults = [entry for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]
    if (wide := browser.execute_script("return document.documentElement.scrollWidth")) > width:
        faults.append(f"{wide} pixels wide")
    return [(page.stem, width, fault) for fault in faults]


def begins_with_the_answer_and_asks_for_nothing(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width)
    notes = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {n["params"]["request"]["url"] for n in notes if n["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith("data:")} <= {page.as_uri()}
    assert browser.title == "cemverify: report"
    answer = browser.find_element("tag name", "h1")
    assert answer.text.startswith("2 of 3 implementations hold every property")
    assert answer.rect["y"] < 200
    for svg in browser.find_elements("css selector", "figure svg"):
        assert 0.5 * min(width, 400) < svg.rect["width"] <= width


def tables_are_searched_and_sorted(browser: Any, page: Path) -> None:
    opened(browser, page, 1400)
    section = next(
        d for d in browser.find_elements("css selector", "details.table") if "Properties of wrong" in d.text
    )
    section.find_element("tag name", "summary").click()

    def rows() -> list[str]:
        return [r.text for r in section.find_elements("css selector", "tbody tr") if r.is_displayed()]

    assert len(rows()) == 13
    search = section.find_element("css selector", ".find input")
    search.send_keys("plain")
    assert len(rows()) == 1
    search.clear()
    browser.execute_script("arguments[0].dispatchEvent(new Event('input'))", search)
    margin = next(h for h in section.find_elements("css selector", "th button") if h.text == "margin")
    margin.click()
    margin.click()
    assert "case-11" in rows()[0]
    assert margin.find_element("xpath", "..").get_attribute("aria-sort") == "descending"


def is_readable_without_javascript(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, page, 390)
        assert browser.find_element("tag name", "h1").text.startswith("2 of 3 implementations")
        assert browser.find_elements("css selector", "button, .find") == []
        assert browser.find_element("css selector", "details.table summary").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
