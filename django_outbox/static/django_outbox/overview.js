/* Refreshes the overview, and continues operations step by step. Every page works without it. */

"use strict";

{
    const STEP_DELAY = 300;

    const fragment = document.getElementById("outbox-fragment");
    if (fragment) {
        refreshAtIntervals(fragment);
    }

    const form = document.querySelector("form[data-continue]");
    if (form) {
        // Time to press "Stop here".
        const timer = setTimeout(() => form.submit(), STEP_DELAY);
        form.addEventListener("submit", () => clearTimeout(timer));
    }

    function refreshAtIntervals(fragment) {
        const interval = Number(fragment.dataset.seconds) * 1000;
        const label = document.getElementById("outbox-refreshed");
        const button = document.getElementById("outbox-refreshing");
        const announcement = document.getElementById("outbox-announcement");
        let refreshed = Date.now();
        let failed = false;
        let stopped = false;
        let fetching = false;

        button.hidden = false;
        button.addEventListener("click", () => {
            stopped = !stopped;
            button.textContent = stopped ? button.dataset.start : button.dataset.stop;
            if (!stopped) {
                refresh();
            }
        });
        document.addEventListener("visibilitychange", () => tick());
        // A mouse that is over a bar of the chart, or a tap on it.
        fragment.addEventListener("pointerover", (event) => {
            const title = event.target.closest(".outbox-period")?.querySelector("title");
            if (title) {
                fragment.querySelector(".outbox-readout").textContent = title.textContent;
            }
        });
        setInterval(tick, Math.min(interval, 1000));
        tick();

        function tick() {
            const age = Date.now() - refreshed;
            const seconds = String(Math.floor(age / 1000));
            label.textContent = (failed ? label.dataset.failed + " · " : "") + label.dataset.ago.replace("{seconds}", seconds);
            if (age >= interval && !stopped && !document.hidden) {
                refresh();
            }
        }

        async function refresh() {
            if (fetching) {
                return;
            }
            fetching = true;
            try {
                const url = new URL(fragment.dataset.url, location.href);
                url.searchParams.set("fragment", "1");
                const response = await fetch(url, { credentials: "same-origin" });
                // The session may have ended: then this is the page for logging in.
                if (!response.ok || response.redirected) {
                    throw new Error(String(response.status));
                }
                replace(await response.text());
                failed = false;
                refreshed = Date.now();
            } catch (error) {
                failed = true;
            } finally {
                fetching = false;
            }
        }

        function replace(html) {
            const before = verdict();
            const focused = fragment.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
            const open = [...fragment.querySelectorAll("details[open]")].map((details) => details.dataset.key);
            const parsed = new DOMParser().parseFromString(html, "text/html");
            fragment.replaceChildren(...parsed.body.childNodes);
            for (const details of fragment.querySelectorAll("details")) {
                details.open = open.includes(details.dataset.key);
            }
            if (focused !== undefined) {
                const again = [...fragment.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused);
                again?.focus({ preventScroll: true });
            }
            if (verdict() !== before) {
                announcement.textContent = verdict();
            }
        }

        function verdict() {
            return fragment.querySelector(".outbox-sentence")?.textContent ?? "";
        }
    }
}
