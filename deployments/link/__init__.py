"""The wire between the proposer and the drafters. Knows nothing of either end."""
