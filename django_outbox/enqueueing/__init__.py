"""The caller's side: messages are checked and written in the caller's transaction."""
