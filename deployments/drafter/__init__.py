"""One draft on its own process: the engine, its KV slots, the service, the Serve replica."""
