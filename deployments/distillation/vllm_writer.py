"""The verifier as a writer of texts: vLLM's offline engine with large batches."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deployments.distillation.errors import DistillError
from deployments.distillation.settings import TextSettings
from deployments.distillation.texts import Request, Text

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput

#: KV memory on CPUs, where vLLM would take a fixed share of the machine: within these bounds.
_LEAST_KV, _MOST_KV = 1 << 28, 1 << 33
_FEW_CORES = 4


class VllmWriter:
    """Writes texts with vLLM; every finished text is given out at once and another takes its place.

    The engine runs in a process of its own, which `close` ends: its memory, a GPU's included, is free then.

    Args:
        model: the verifier's checkpoint folder.
        settings: batch, number format, length.
        longest: tokens of the longest prompt that will come.

    Raises:
        DistillError: the engine does not start; the text holds its reason.
    """

    def __init__(self, model: Path, settings: TextSettings, longest: int) -> None:
        prepare_environment()
        from vllm import LLM

        length = longest + settings.max_tokens
        arguments: dict[str, Any] = {
            "dtype": settings.dtype,
            "max_model_len": length,
            "max_num_seqs": settings.batch,
            "max_logprobs": settings.top_k,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "enable_prefix_caching": True,  # many answers to one prompt, one system prompt for all
            "disable_log_stats": True,
            "skip_tokenizer_init": True,
            "seed": 0,
        }
        if not torch.cuda.is_available():
            # Compiling takes a minute on few cores and gains little at these batches.
            arguments["enforce_eager"] = True
            arguments["kv_cache_memory_bytes"] = _kv_bytes(model, settings, length)
        arguments |= settings.engine
        self._stop_ids = end_ids(model)
        try:
            with _interrupts_kept_from_children():
                self._llm: LLM = LLM(str(model), **arguments)
        except Exception as error:  # vLLM raises everything from ValueError to RuntimeError
            raise DistillError(f"vLLM does not start with {model}: {_first_line(error)}") from error

    def write(self, requests: Sequence[Request]) -> Generator[tuple[int, Text], None, None]:
        """See `writing.Writer.write`."""
        engine = self._llm.llm_engine
        pending = iter(enumerate(requests))
        running = 0
        try:
            while True:
                # A bounded queue in front of the batch keeps it full without holding everything.
                while running < 2 * self._llm.llm_engine.vllm_config.scheduler_config.max_num_seqs:
                    place, request = next(pending, (None, None))
                    if request is None:
                        break
                    engine.add_request(
                        str(place), {"prompt_token_ids": list(request.prompt)}, self._parameters(request)
                    )
                    running += 1
                if not running:
                    return
                for output in engine.step():
                    if output.finished:
                        running -= 1
                        place = int(output.request_id)
                        yield place, _text(output, requests[place])  # type: ignore[arg-type]
        except Exception as error:
            raise DistillError(f"vLLM failed while it wrote texts: {_first_line(error)}") from error

    def close(self) -> None:
        """End the engine's process."""
        self._llm.llm_engine.engine_core.shutdown()

    def _parameters(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=request.temperature,
            seed=request.seed if request.temperature else None,
            max_tokens=request.max_tokens,
            stop_token_ids=self._stop_ids,
            logprobs=request.top_k,
            flat_logprobs=True,  # an object per token and rank costs more than the model does
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def prepare_environment() -> None:
    """Set what vLLM's processes need, where the user has not."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about choices made here
    if torch.cuda.is_available():
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= _FEW_CORES:
        # vLLM leaves one core to others; here nobody waits for an answer, and it may be half of the machine.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if openmp.exists():
        os.environ.setdefault("LD_PRELOAD", str(openmp))


def end_ids(model: Path) -> list[int]:
    """The ids that end an answer, from the checkpoint's configuration files; ascending."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = model / name
        if path.is_file():
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            found.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(found)


@contextmanager
def _interrupts_kept_from_children() -> Iterator[None]:
    """Ctrl-C in a terminal goes to all of its processes; the engine's would die with texts half done.

    A blocked signal stays blocked in processes started meanwhile, whatever handlers they set. `close` needs
    none. One that comes while the engine starts is heeded once it has.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kv_bytes(model: Path, settings: TextSettings, length: int) -> int:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // heads)
    kept = 2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * width * 4
    # A block more for each text, since vLLM pages by blocks of up to 128 tokens on CPUs.
    return min(max(kept * (length + 128) * settings.batch, _LEAST_KV), _MOST_KV)


def _text(output: RequestOutput, request: Request) -> Text:
    answer = output.outputs[0]
    flat: Any = answer.logprobs
    # At each place: the token taken, then the top k.
    shape = (len(answer.token_ids), request.top_k + 1)
    ids = torch.tensor(flat.token_ids, dtype=torch.int32).view(shape)[:, 1:]
    odds = torch.tensor(flat.logprobs, dtype=torch.float32).view(shape)[:, 1:].half()
    return Text(
        torch.tensor(request.prompt, dtype=torch.int32),
        torch.tensor(list(answer.token_ids), dtype=torch.int32),
        ids.contiguous(),
        odds.contiguous(),
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
