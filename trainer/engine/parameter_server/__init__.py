"""Parameter servers: variables on ps, asynchronous and synchronous workers."""
