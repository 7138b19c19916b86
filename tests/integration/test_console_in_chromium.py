"""The console as a person meets it: a real browser, the keyboard, a phone, the dark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "service"))

from test_dashboard import console_in

from evalstop.service.tokens import Principal, Scope

LONGEST_MS = 120_000
expect.set_options(timeout=LONGEST_MS)

CHROMIUM = "/usr/bin/chromium"
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

VIEWPORTS = {
    "desk": {"viewport": {"width": 1200, "height": 850}},
    "dark": {"viewport": {"width": 1200, "height": 850}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}},
}


@pytest.fixture
def console(tmp_path):
    with console_in(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=QUIET, timeout=LONGEST_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, console):
    """Return a page of somebody who has logged in; complaints of the browser fail the test."""
    opened, complaints = [], []

    def log_in(scope=Scope.OPERATOR, tenant="", **settings):
        token = console.running.tokens.make(Principal(name="olga", scope=scope, tenant=tenant))
        context = chromium.new_context(**settings)
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(LONGEST_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: m.type == "error" and complaints.append(m.text))
        page.goto(console.url)
        page.wait_for_selector("input:focus")
        page.keyboard.type(token)
        page.keyboard.press("Enter")
        page.wait_for_selector("nav")
        return page

    yield log_in
    for context in opened:
        context.close()
    assert not complaints


def test_a_page_follows_what_happens_without_being_loaded_again(console, visit):
    console.submit("a")
    page = visit()
    row = page.locator("tr", has_text="a").filter(has=page.locator("a[href='/ui/jobs/a']"))
    expect(row).to_contain_text("no evals yet")
    page.evaluate("window.notLoadedAgain = true")
    console.report("a", 0.5, 0.75)
    expect(row).to_contain_text("0.75")
    assert page.evaluate("window.notLoadedAgain")


def test_an_operator_stops_and_reopens_a_job_with_the_keyboard_alone(console, visit):
    console.submit("a")
    console.report("a", 0.5, 0.75)
    page = visit()
    page.goto(f"{console.url}/ui/jobs/a")
    stop = page.get_by_role("button", name="Stop now, keep the best")
    stop.focus()
    console.report("a", 0.5, 0.75, 0.875)
    expect(page.get_by_text("0.875").first).to_be_visible()  # the page was renewed meanwhile
    expect(stop).to_be_focused()
    page.keyboard.press("Enter")
    undo = page.get_by_role("button", name="Undo: reopen from the best")
    expect(undo).to_be_visible()
    expect(page.get_by_text("By olga")).to_be_visible()
    undo.focus()
    page.keyboard.press("Enter")
    console.running.platform.wait_for("a", {"running"}, within_s=120)
    expect(page.locator("h1")).to_contain_text("running")


@pytest.mark.parametrize("name", VIEWPORTS)
def test_every_page_fits_its_screen_and_names_what_it_shows(console, visit, name):
    console.submit("a-job-with-a-name-that-is-a-good-deal-longer-than-names-usually-are-000001")
    page = visit(**VIEWPORTS[name])
    for path in ["/ui/", "/ui/jobs", "/ui/savings", "/ui/policies", "/ui/audit"]:
        page.goto(console.url + path)
        width = page.viewport_size["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.locator("h1").count() == 1
        assert page.locator("svg:not([role=img][aria-label])").count() == 0
        unnamed = page.locator("input:visible:not([aria-label])").evaluate_all(
            "inputs => inputs.filter(i => !i.labels.length).length"
        )
        assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_paper(visit, scheme):
    page = visit(color_scheme=scheme)
    for selector in ["h1", ".quiet >> nth=0", "nav a[aria-current]", "h2 >> nth=0"]:
        assert contrast(page, selector) >= 4.5, selector


def contrast(page, selector):
    """Return the WCAG contrast ratio of an element's text with what lies behind it."""
    for _ in range(20):
        found = colours(page, selector)
        if found is not None:
            break
    text, paper = found
    light, dark = sorted((luminance(text), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def colours(page, selector):
    """Return text and paper in red, green and blue; None where the page was renewed meanwhile."""
    return page.locator(selector).first.evaluate(
        """element => {
            if (!element.isConnected) { return null; }
            const rgb = colour => colour.match(/[0-9.]+/g).map(Number);
            let behind = element;
            while (rgb(getComputedStyle(behind).backgroundColor)[3] === 0) {
              behind = behind.parentElement;
            }
            return [rgb(getComputedStyle(element).color),
                    rgb(getComputedStyle(behind).backgroundColor)];
        }"""
    )


def luminance(rgb):
    linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_tenant_is_not_shown_what_is_not_theirs(console, visit):
    console.submit("mine", tenant="red")
    console.submit("theirs", tenant="blue")
    page = visit(scope=Scope.TENANT, tenant="red")
    expect(page.get_by_text("mine")).to_be_visible()
    assert page.get_by_text("theirs").count() == 0
    assert page.get_by_role("link", name="Audit").count() == 0
