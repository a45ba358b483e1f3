"""From a verifier and prompts to a draft: texts, training, scoring, and the folder that the fleet serves."""
