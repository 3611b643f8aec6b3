"""The stream of a publisher on PostgreSQL."""
