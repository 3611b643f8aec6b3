"""Publishers send batches of messages to a broker. `base` has their contract; every other module is one publisher."""
