"""Private tools that know nothing of the outbox: text, logs, threads, rates and this process."""
