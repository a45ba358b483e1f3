"""From model configurations to a plan: what fits where, how fast it will be, and which draft pays. Loads no model."""
