"""A browser, and an operator who is logged in to the admin."""

import shutil
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver

from tests.support.admin.browser import SECONDS, Operator
from tests.support.admin.tools import CHANGELIST

SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1400,1000",
)


@pytest.fixture(scope="session")
def database_before_server(django_db_setup: None) -> None:
    """Create the test database first: until then, all threads of the server would share a database in memory."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(switch)
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    options.binary_location = next(filter(None, map(shutil.which, names)), "")
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """A new tab; what a test has stored and logged goes with it."""
    chromium.switch_to.new_window("tab")
    yield chromium
    origin = chromium.execute_script("return location.origin")
    chromium.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    chromium.get_log("browser")
    chromium.close()
    chromium.switch_to.window(chromium.window_handles[0])


@pytest.fixture
def operator(
    database_before_server: None, browser: webdriver.Chrome, live_server: LiveServer, admin_user: User
) -> Operator:
    """An operator who is logged in and sees the list."""
    browser.implicitly_wait(SECONDS)
    operator = Operator(browser, live_server.url)
    operator.open(CHANGELIST)
    operator.log_in("admin", "password")
    return operator
