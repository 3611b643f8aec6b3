"""What consumers may rely on: the events as documents, and the changes between two of them."""
