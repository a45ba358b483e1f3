"""What Ray Serve runs: gateway, verifier, drafters, the link between them, the registry."""
