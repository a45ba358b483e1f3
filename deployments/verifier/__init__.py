"""vLLM with proposals from the fleet: the server, the proposer, the worker extension."""
