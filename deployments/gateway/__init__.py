"""The OpenAI-compatible ingress."""
