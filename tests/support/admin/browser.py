"""A person in front of a real browser."""

from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 60


class Operator:
    """Uses the open page as a person would."""

    def __init__(self, browser: webdriver.Chrome, server: str) -> None:
        self.browser = browser
        self.server = server

    def open(self, path: str) -> None:
        self.browser.get(self.server + path)

    def log_in(self, name: str, password: str) -> None:
        self.find("#id_username").send_keys(name)
        self.find("#id_password").send_keys(password)
        self.follow(self.find("input[type=submit]"))

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def follow(self, element: WebElement) -> None:
        """Click an element that opens another page, and wait for that page."""
        page = self.find("html")
        element.click()
        self.wait_for_page_after(page)

    def wait_for_page_after(self, page: WebElement) -> None:
        """Wait until another page has replaced this one, given as its root element."""
        # Chromium may also answer with an error of its own while it replaces a page.
        waiting = WebDriverWait(self.browser, SECONDS, ignored_exceptions=[WebDriverException])
        waiting.until(staleness_of(page))
        self.find("#content")

    def wait_for_text(self, selector: str, text: str) -> None:
        """Wait until an element has a text, also on the page that replaces this one."""
        waiting = WebDriverWait(self.browser, SECONDS, ignored_exceptions=[WebDriverException])
        waiting.until(lambda _: self.find(selector).text == text)

    def column(self, name: str) -> list[str]:
        return [cell.text for cell in self.find_all(f"#result_list .field-{name}")]

    def script(self, body: str, *arguments: object) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self.browser.execute_script(body, *arguments)

    def resize(self, width: int, height: int) -> None:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def show(self, scheme: str) -> None:
        """Prefer the light or the dark colour scheme from now on."""
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
