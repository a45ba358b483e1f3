"""`specfleet evaluate`: which drafts are worth it, for which domain, how long and at which batch size."""
