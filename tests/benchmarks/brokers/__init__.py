"""The brokers that messages can be drained to."""
