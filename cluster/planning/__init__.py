"""From model configurations to a plan: what fits, how fast it will be, which draft pays. Loads no model."""
