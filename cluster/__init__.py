"""The fleet as a whole: configuration, bring-up, command line."""
