"""The archive: messages are written to one of Django's `STORAGES` before they are deleted, and can be restored.

An archive is a file of lines and its manifest:

    <database>/2026/05/31/<id>.jsonl.gz            the messages, one per line
    <database>/2026/05/31/<id>.manifest.json       number, checksum, time, reason

Rows are locked and written to the file, which is read back; the manifest is written and read back; the rows are
deleted; the transaction commits. A crash before the commit leaves the rows in the table, so an archive may hold
messages that are in the table, or in another archive, as well. A file without a manifest was never finished, and its
rows were not deleted.
"""
