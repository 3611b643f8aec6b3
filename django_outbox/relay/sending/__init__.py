"""Sending: batches that a publisher hands to a broker."""
