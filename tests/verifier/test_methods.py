"""vLLM's own ways to propose: what an operator may write, and what the engine is told."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from deployments.verifier.engine_arguments import engine_arguments
from deployments.verifier.methods import METHODS, NOT_OFFERED, ProposerSettings
from deployments.verifier.settings import VerifierSettings


def verifier(device: str = "cpu", **proposer: Any) -> VerifierSettings:
    return VerifierSettings.model_validate(
        {"model": "m", "name": "n", "device": device, "proposer": proposer}
    )


def refused(**proposer: Any) -> str:
    with pytest.raises(ValidationError) as told:
        verifier(**proposer)
    return str(told.value)


def test_the_engine_is_told_of_it_and_nothing_of_the_fleets_proposer() -> None:
    settings = verifier(
        method="ngram", num_speculative_tokens=3, options={"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    )
    arguments = engine_arguments(settings, 7)
    assert arguments["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    assert "worker_extension_cls" not in arguments
    plain = engine_arguments(VerifierSettings(model="m", name="n"), 7)
    assert plain["speculative_config"]["method"] == "custom_class"
    assert plain["worker_extension_cls"].endswith("FleetWorkerExtension")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("n-gram", "did you mean 'ngram'?"),
        ("eagel", "did you mean 'eagle'?"),
        ("EAGLE-3", "did you mean 'eagle3'?"),
        ("draft-model", "did you mean 'draft_model'?"),
        ("deepseek_mtp", "did you mean 'mtp'?"),
        ("lookahead_of_ours", "offered: ngram, suffix, medusa"),
        ("custom_class", "leave verifier.proposer out"),
        ("mlp_speculator", "is not offered"),
    ],
)
def test_methods_that_are_none_get_a_suggestion(method: str, said: str) -> None:
    assert said in refused(method=method)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "medusa"}, "method medusa needs a model"),
        ({"method": "ngram", "model": "x"}, "method ngram takes no model"),
        ({"method": "ngram", "options": {"model": "x"}}, "options must not set model"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "greater than or equal to 1"),
        ({"method": "ngram", "k": 3}, "Extra inputs are not permitted"),
        ({"method": "dflash", "model": "x"}, "offered on GPUs only (device: cuda); on CPUs: ngram, suffix"),
    ],
)
def test_settings_that_do_not_belong_together(settings: dict[str, Any], said: str) -> None:
    assert said in refused(**settings)


def test_on_a_gpu_all_are_offered() -> None:
    for name, method in METHODS.items():
        verifier(device="cuda", method=name, **({"model": "x"} if method.model == "needed" else {}))


def test_every_method_of_vllm_is_offered_or_said_to_be_not() -> None:
    from vllm.config.speculative import MTPModelTypes, SpeculativeMethod

    theirs = set(get_args(SpeculativeMethod)) - set(get_args(MTPModelTypes)) | {"mtp"}
    assert theirs == METHODS.keys() | NOT_OFFERED.keys()
    offered = ProposerSettings.model_json_schema()["properties"]["method"]["enum"]
    assert set(offered) == METHODS.keys()
