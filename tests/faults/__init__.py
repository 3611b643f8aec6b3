"""The fault suite: real servers and real processes, broken on purpose, and a ledger of what became of each message."""
