"""What can go wrong with the suite itself; a broken promise of the outbox is no error, but a line of the ledger."""


class SuiteError(Exception):
    """The run cannot begin or go on; the text says why and what to do."""
