"""A browser to look at reports with."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """An open page, what its console said, and what it asked for: nothing but itself."""

    def __init__(self, browser, path, **options):
        self.said, self.asked = [], []
        self._context = browser.new_context(**options)
        self.page = self._context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("#chart-delta .main-svg, #chart-clip .main-svg")

    def check(self):
        assert self.said == []
        assert len(self.asked) == 1
        assert self.asked[0].startswith("file://")

    def close(self):
        self._context.close()


@pytest.fixture(scope="session")
def open_visit(browser):
    """Open a page that whoever asks for it closes."""
    return lambda path, **options: Visit(browser, path, **options)


@pytest.fixture
def visit(open_visit):
    """Open a page in a window of its own, for one test."""
    visits = []

    def open_page(path, **options):
        visits.append(open_visit(path, **options))
        return visits[-1].page

    yield open_page
    for visited in visits:
        visited.close()
        visited.check()
