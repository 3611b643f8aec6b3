"""Retention: processed messages are kept for a while and then deleted."""
