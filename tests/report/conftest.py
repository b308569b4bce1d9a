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


@pytest.fixture
def visit(browser):
    """Open a page; what it asked for, and what the console said, must be nothing."""
    contexts, asked, said = [], [], []

    def open_page(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("#chart-delta .main-svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert len(asked) == len(contexts)
    assert all(url.startswith("file://") for url in asked)
