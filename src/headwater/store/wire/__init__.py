"""What crosses the wire between a store and its clients: messages, payloads, and how they compare."""
