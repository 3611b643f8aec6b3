"""Additions to Django's ORM: fields, functions, indexes and lookups. They know nothing of messages."""
