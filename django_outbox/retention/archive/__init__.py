"""The archive: messages are written to one of Django's `STORAGES` before they are deleted, and can be restored.

An archive is a file of lines, its manifest, and a marker that the deletion was committed:

    <database>/2026/05/31/<id>.jsonl.gz            the messages, one per line
    <database>/2026/05/31/<id>.manifest.json       number, ids, checksum, time, reason
    <database>/2026/05/31/<id>.committed.json      written after the messages were deleted

They are written in this order: rows are locked and written to the file, which is read back; the manifest is written and
read back; the rows are deleted; the transaction commits; the marker is written. A crash before the commit leaves the
rows in the table. An archive without the marker may therefore hold messages that are in the table, or in another
archive, as well. A file without a manifest was never finished, and its rows were not deleted.
"""
