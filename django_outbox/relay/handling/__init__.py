"""Handling: messages that a publisher handles one at a time, and may write about in their database."""
