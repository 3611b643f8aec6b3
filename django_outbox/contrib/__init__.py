"""Integrations with other products. Each module needs the extra of the same name."""
