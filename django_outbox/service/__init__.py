"""Long-lived processes of threads: the common parts of a relay and an inbox."""
