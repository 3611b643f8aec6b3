"""What a relay and an inbox have in common as long-lived processes of threads."""
