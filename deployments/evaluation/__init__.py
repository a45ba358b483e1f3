"""What drafts would give: scoring texts, measuring costs and speeds on the real engine."""
