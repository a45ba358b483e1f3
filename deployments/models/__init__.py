"""Where models come from and whether two of them fit together. Runs on every node."""
