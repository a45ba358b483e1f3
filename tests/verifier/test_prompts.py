import pytest

from deployments.verifier.prompts import wrong_token_id


@pytest.mark.parametrize("prompt", ["text", ["two", "texts"], [0, 99], [[5], [99, 0]], [], None])
def test_prompts_within_the_vocabulary_pass(prompt: object) -> None:
    assert wrong_token_id(prompt, 100) is None


@pytest.mark.parametrize("prompt", [[100], [0, -1], [[5], [99, 100]], [101]])
def test_others_are_named(prompt: object) -> None:
    assert "0 to 99" in (wrong_token_id(prompt, 100) or "")
