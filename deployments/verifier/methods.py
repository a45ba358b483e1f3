"""Ways of vLLM's own to propose, run beside the verifier in its engine instead of the fleet's drafts.

What there is and what it needs, as vLLM 0.29 has it (`vllm/config/speculative.py`, the V1 model runner).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Need = Literal["needed", "optional", "none"]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to propose.

    Attributes:
        about: what proposes, for people.
        model: whether it takes a model.
        cpu: whether it runs on CPUs.
        package: import name and distribution of a package that does not come with vLLM.
    """

    about: str
    model: Need
    cpu: bool = True
    package: tuple[str, str] | None = None


METHODS: Final[Mapping[str, Method]] = {
    "ngram": Method("what stands earlier in the same request", "none"),
    "suffix": Method(
        "what stands earlier in this request or in earlier answers",
        "none",
        package=("arctic_inference", "arctic-inference==0.1.1"),
    ),
    "medusa": Method("Medusa heads on the verifier's last hidden state", "needed"),
    "eagle": Method("an EAGLE head", "needed"),
    "eagle3": Method("an EAGLE-3 head", "needed"),
    "mtp": Method("the layers for multi-token prediction that came with the verifier", "optional"),
    "draft_model": Method("a draft inside the verifier's engine", "needed"),
    "dflash": Method("a DFlash head", "needed", cpu=False),
}
#: Of vLLM's methods, those that are not offered, and why.
NOT_OFFERED: Final[Mapping[str, str]] = {
    "custom_class": "that is how the fleet's own drafts propose: leave verifier.proposer out for them",
    "extract_hidden_states": "it proposes nothing",
    "mlp_speculator": "vLLM 0.29 has no proposer for it any more",
    "ngram_gpu": "write ngram",
    "dspark": "it has not been tried with the fleet",
}
#: Options that have settings of their own, or that the fleet's layout does not allow.
TAKEN: Final = frozenset({"method", "model", "num_speculative_tokens", "tensor_parallel_size"})


def _known(method: object) -> object:
    """Words for a method that is not one."""
    if not isinstance(method, str) or method in METHODS:
        return method
    if method in NOT_OFFERED:
        raise ValueError(f"vLLM's {method} is not offered ({NOT_OFFERED[method]}); offered: {_all()}")
    plain = method.lower().replace("-", "").replace("_", "").replace(" ", "")
    by_plain = {name.replace("_", ""): name for name in METHODS}
    close = difflib.get_close_matches(plain, by_plain, n=1, cutoff=0.6)
    hint = f"did you mean {by_plain[close[0]]!r}? " if close else ""
    if plain.endswith("mtp"):
        hint = "did you mean 'mtp'? "
    raise ValueError(f"there is no method {method!r}; {hint}offered: {_all()}")


def _all() -> str:
    return ", ".join(METHODS)


class ProposerSettings(BaseModel):
    """One of vLLM's own ways to propose, the same for every request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Annotated[
        Literal["ngram", "suffix", "medusa", "eagle", "eagle3", "mtp", "draft_model", "dflash"],
        BeforeValidator(_known),
    ] = Field(
        description="Who proposes: ngram or suffix (text that was there before), medusa, eagle, eagle3 or "
        "dflash (heads trained for the verifier), mtp (the verifier's own layers for it), draft_model (a "
        "draft inside the engine)."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="The head or the draft: a folder or a Hugging Face id. Not for ngram and suffix.",
    )
    num_speculative_tokens: int = Field(
        default=4, ge=1, le=16, description="Tokens proposed for every request in every step."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's SpeculativeConfig under its own names, such as "
        "prompt_lookup_max for ngram.",
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        need = METHODS[self.method].model
        if need == "needed" and self.model is None:
            raise ValueError(f"method {self.method} needs a model: {METHODS[self.method].about}")
        if need == "none" and self.model is not None:
            raise ValueError(f"method {self.method} takes no model: it proposes {METHODS[self.method].about}")
        taken = sorted(TAKEN & self.options.keys())
        if taken:
            raise ValueError(f"options must not set {', '.join(taken)}: they have settings of their own")
        return self

    @property
    def maps_vocabularies(self) -> bool:
        """Whether vLLM translates between two vocabularies, so that the draft's may be another."""
        return self.method == "draft_model" and bool(self.options.get("use_heterogeneous_vocab"))

    def speculative_config(self) -> dict[str, Any]:
        """vLLM's `speculative_config`; the model is the source as configured, not yet a folder."""
        found: dict[str, Any] = {
            "method": self.method,
            "num_speculative_tokens": self.num_speculative_tokens,
            **self.options,
        }
        if self.model is not None:
            found["model"] = self.model
        return found
