// Buttons that copy a value. Without JavaScript there are none.
"use strict";
{
    async function copy(text) {
        if (navigator.clipboard) {
            await navigator.clipboard.writeText(text);
            return;
        }
        // A page that was not sent over HTTPS has no clipboard.
        const area = document.createElement("textarea");
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
    }

    function addButtons() {
        for (const value of document.querySelectorAll("[data-outbox-copy]")) {
            const button = document.createElement("button");
            button.type = "button";
            button.className = "outbox-copy";
            button.textContent = value.dataset.outboxCopy;
            button.addEventListener("click", async () => {
                await copy(value.textContent);
                button.textContent = value.dataset.outboxCopied;
                setTimeout(() => { button.textContent = value.dataset.outboxCopy; }, 2000);
            });
            value.after(button);
        }
    }

    document.addEventListener("DOMContentLoaded", addButtons);
}
