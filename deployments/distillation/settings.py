"""Every choice of a distillation, with its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Loss = Literal["kl", "reverse-kl", "ce", "mixed"]
Layer = Annotated[int, Field(ge=0)]


class TextSettings(BaseModel):
    """What the verifier writes for training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int = Field(
        default=120_000,
        ge=1,
        description="Answer tokens to train on. Greedy answers come first; when every prompt has one, "
        "further answers are sampled until there are so many.",
    )
    max_tokens: int = Field(default=160, ge=4, description="Longest answer, in tokens.")
    temperature: float = Field(
        default=0.8, gt=0, le=2, description="Of the sampled answers; the first of each prompt is greedy."
    )
    own_prompts: int = Field(
        default=0,
        ge=0,
        description="Prompts that the verifier makes up itself, each beginning as one of the prompts given, "
        "where there are too few for the tokens wanted.",
    )
    top_k: int = Field(
        default=16, ge=1, le=256, description="Likeliest tokens whose odds are kept at every place of a text."
    )
    batch: int = Field(default=96, ge=1, le=4096, description="Texts that the verifier writes at once.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of the verifier while it writes; auto is the checkpoint's."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, description="GPUs that share the verifier while it writes."
    )
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of the writing vLLM engine, passed on as they are (vLLM's own names).",
    )


class StudentSettings(BaseModel):
    """What the draft is made of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: list[Layer] | None = Field(
        default=None,
        min_length=1,
        description="Layers of the verifier that the draft starts from, in this order; default: its first "
        "two and its last.",
    )
    start_from: str | None = Field(
        default=None, description="A draft folder to go on training from, instead of the verifier's layers."
    )
    head_ids: int | None = Field(
        default=6000, ge=1, description="Token ids that the draft may propose; null: all of them."
    )


class TrainingSettings(BaseModel):
    """How it is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: Loss = Field(
        default="mixed",
        description="kl: the verifier's odds, forward; reverse-kl: backward; ce: only its likeliest token; "
        "mixed: kl and ce.",
    )
    ce_share: float = Field(default=0.5, ge=0, le=1, description="Share of ce in the mixed loss.")
    steps: int | None = Field(default=None, ge=1, description="Optimiser steps; default: from `passes`.")
    passes: float = Field(
        default=6, gt=0, description="Passes over the texts when neither steps nor minutes are given."
    )
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="Roughly how long to train: the number of steps is set from the speed that is measured "
        "at the start, so that the learning rate ends where it should.",
    )
    step_tokens: int = Field(default=3000, ge=1, description="Answer tokens in one optimiser step.")
    micro_tokens: int = Field(
        default=4096, ge=1, description="Tokens computed at once, padding included: what memory allows."
    )
    optimizer: Literal["muon", "adamw"] = Field(
        default="muon", description="muon (with AdamW for vectors), or adamw for everything."
    )
    learning_rate: float = Field(
        default=2.5e-3, gt=0, description="Highest learning rate; about 2.5e-3 for muon, 6e-4 for adamw."
    )
    warmup: float = Field(default=0.03, ge=0, lt=1, description="Share of the steps with a rising rate.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled weight decay of matrices.")
    clip: float = Field(default=1.0, gt=0, description="Largest norm of a step's gradient.")
    seed: int = Field(default=0, ge=0, description="Of the order of the texts.")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Of the arithmetic; weights stay float32. auto: bfloat16."
    )
    threads: int | None = Field(
        default=None, ge=1, description="Threads for arithmetic on CPUs; default: all cores."
    )
    checkpoint_minutes: float = Field(
        default=2, ge=0, description="Time between checkpoints; 0 writes one after every step."
    )


class DistillSettings(BaseModel):
    """A whole distillation, but for what is distilled from what (verifier, prompts, name, folders)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hold_back: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the prompts that is only measured on."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the draft is trained; auto takes a GPU where there is one."
    )
    texts: TextSettings = Field(default_factory=TextSettings, description="What the verifier writes.")
    student: StudentSettings = Field(
        default_factory=StudentSettings, description="What the draft is made of."
    )
    training: TrainingSettings = Field(default_factory=TrainingSettings, description="How it is trained.")
