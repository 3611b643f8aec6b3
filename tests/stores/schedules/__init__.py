"""The schedule explorer: drawn interleavings of writers, relays and operators, each step checked against a model."""
