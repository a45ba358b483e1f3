"""Tiny models, as the drafters' own tests make them."""

from tests.drafter.conftest import tiny_llama, verifier

__all__ = ["tiny_llama", "verifier"]
