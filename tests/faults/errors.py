"""Errors of the suite itself; a broken promise of the outbox is not an error, but a line of the ledger."""


class SuiteError(Exception):
    """The run cannot begin or continue; the text states the reason and the remedy."""
