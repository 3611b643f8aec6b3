"""System checks: what is wrong with the settings is said at start, each with an id and a remedy."""
