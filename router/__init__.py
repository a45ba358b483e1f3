"""Who proposes, and how much: domains, acceptance, cost, policy. Pure Python."""
