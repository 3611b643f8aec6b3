"""Publishers: what hands a batch of messages to a broker. `base` holds the contract, each other module one broker."""
