"""Comparing ways to spend GPUs: what is said has to follow from what is computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.planning.advice import (
    HIGHEST_ACCEPTANCE,
    LEAST_GAIN,
    best_addition,
    by_load,
    cheapest,
    least_acceptance,
    recommend,
)
from cluster.planning.assumptions import Assumptions
from cluster.planning.fleet import Fleet, evaluate, fit_of
from cluster.planning.gpus import Gpu
from cluster.planning.options import DraftModel, Option, all_options
from cluster.planning.spared import spared
from cluster.planning.tables import by_gpu, by_precision, choose_parallel, drafts_alone
from tests.planning.shapes import GIVEN, draft, engine, fleet, shape


def base(**prices: float) -> Fleet:
    used = engine("Llama-3.1-70B", "H100", 4)
    return fleet(replace(used, gpu=used.gpu.model_copy(update={f"{k}": v for k, v in prices.items()})))


def options(
    drafts: list[DraftModel] | None = None,
    given: Assumptions = GIVEN,
    start: Fleet | None = None,
    draft_gpu: Gpu | None = None,
) -> list[Option]:
    start = start or base()
    return all_options(
        start, [draft()] if drafts is None else drafts, draft_gpu or start.verifier.gpu, 8, given
    )


def keyed(found: list[Option]) -> dict[str, Option]:
    return {option.key: option for option in found}


def under(concurrency: int) -> Assumptions:
    load = GIVEN.load.model_copy(update={"concurrency": concurrency})
    return GIVEN.model_copy(update={"load": load})


def test_options_cost_what_their_gpus_cost() -> None:
    found = keyed(options([draft(share=0.5, called="a"), draft(share=0.5, called="b")]))
    gpus = {key: option.fleet.gpus for key, option in found.items() if option.fleet}
    assert gpus.pop("fraction") in (4.5, 4.25, 4.125)
    assert gpus == {"base": 4, "beside": 4, "whole": 5, "each": 6, "replica": 8, "wider": 8}
    for option in found.values():
        assert option.fleet is not None
        assert option.fleet.price_per_hour == pytest.approx(3.5 * option.fleet.gpus)


def test_what_cannot_be_says_why() -> None:
    small = engine("Qwen2.5-7B", "H100", 4)  # 28 heads
    found = keyed(options(start=fleet(small)))
    assert found["wider"].why_not == "its 28 heads do not divide by 8"
    wide = keyed(options(start=fleet(engine("Llama-3.1-70B", "H100", 8))))
    assert wide["wider"].why_not == "GPUs of a node: 8"
    tiny = base().verifier.gpu.model_copy(update={"name": "tiny", "memory_gib": 1.0})
    assert "GiB of 1.0" in keyed(options(draft_gpu=tiny))["whole"].why_not


def test_drafts_beside_the_verifier_take_room_for_kv() -> None:
    found = keyed(options())
    beside, alone = found["beside"].fleet, found["base"].fleet
    assert beside is not None
    assert alone is not None
    tight = replace(beside, taken_gib=30.0)
    assert fit_of(tight, GIVEN).requests < fit_of(alone, GIVEN).requests


def test_a_fraction_of_a_gpu_is_cheaper_and_not_faster() -> None:
    found = keyed(options())
    part, whole = found["fraction"].outcome, found["whole"].outcome
    assert part is not None
    assert whole is not None
    assert part.rate <= whole.rate
    assert part.price_per_million < whole.price_per_million


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 0.9), st.sampled_from([1, 8, 32, 128, 512]))
def test_the_best_addition_is_the_one_with_most_for_its_price(acceptance: float, load: int) -> None:
    given_ = under(load)
    found = options([draft(acceptance=acceptance)], given_)
    best = best_addition(found, given_, load)
    start = found[0]
    assert start.fleet is not None
    assert start.outcome is not None
    values = {}
    for option in found[1:]:
        if option.fleet is None or option.outcome is None:
            continue
        added = option.fleet.price_per_hour - start.fleet.price_per_hour
        gain = option.outcome.rate / start.outcome.rate - 1
        if added > 0 and gain >= LEAST_GAIN:
            values[option.name] = gain / added
    assert (best.name if best else None) == (max(values, key=lambda name: values[name]) if values else None)


def test_the_threshold_is_where_the_advice_turns() -> None:
    found = options()
    own = keyed(found)["whole"]
    for against in ("base", "verifier"):
        least = least_acceptance(own, found, GIVEN, against=against)
        assert least is not None
        assert 0 < least < HIGHEST_ACCEPTANCE

        def wins(acceptance: float, against: str = against) -> bool:
            again = [
                option
                for option in options([draft(acceptance=acceptance)])
                if option.key in ("base", "whole") or (against == "verifier" and option.kind == "verifier")
            ]
            best = best_addition(again, GIVEN, GIVEN.load.concurrency)
            return best is not None and best.key == "whole"

        assert wins(least + 0.005)
        assert not wins(least - 0.005)


def test_a_dear_gpu_for_drafts_never_beats_the_verifier() -> None:
    dear = base().verifier.gpu.model_copy(update={"price_per_hour": 500.0})
    found = options(draft_gpu=dear)
    own = keyed(found)["whole"]
    assert least_acceptance(own, found, GIVEN, against="verifier") is None
    assert least_acceptance(own, found, GIVEN, against="base") is not None


def test_a_hopeless_draft_never_pays() -> None:
    # A draft as large as its verifier costs as much as it saves, at any acceptance.
    start = fleet(engine("Llama-3.1-8B", "H100"))
    found = options([draft("Llama-3.1-8B")], start=start)
    assert least_acceptance(keyed(found)["whole"], found, GIVEN, against="base") is None
    said = " ".join(recommend(found, [draft("Llama-3.1-8B")], GIVEN, by_load(found, GIVEN)))
    assert "no acceptance makes a GPU for drafts worth while" in said


def test_drafts_pay_in_small_batches_and_not_where_the_verifier_computes() -> None:
    found = options([draft(acceptance=0.7)])
    winners = {row.concurrency: row.winner for row in by_load(found, GIVEN)}
    drafts = {option.name for option in found if option.kind == "drafts"}
    assert winners[1] in drafts
    assert winners[512] not in drafts


def test_the_cheapest_can_be_configured() -> None:
    found = options([draft(acceptance=0.8)])
    least = cheapest(found)
    assert least is not None
    assert least.key != "beside"
    assert least.outcome is not None
    for option in found:
        if option.configurable and option.outcome is not None:
            assert least.outcome.price_per_million <= option.outcome.price_per_million / (1 - LEAST_GAIN)


def test_the_advice_names_price_and_gain() -> None:
    found = options([draft(acceptance=0.8)])
    best = best_addition(found, GIVEN, GIVEN.load.concurrency)
    assert best is not None
    assert best.outcome is not None
    said = " ".join(recommend(found, [draft(acceptance=0.8)], GIVEN, by_load(found, GIVEN)))
    assert f"More GPUs are best spent on: {best.name}" in said
    assert f"{best.outcome.price_per_million:.2f} per million" in said


def test_without_drafts_only_the_verifier_is_planned() -> None:
    found = options([])
    assert {option.kind for option in found} == {"base", "verifier"}
    assert "No draft was given" in recommend(found, [], GIVEN, by_load(found, GIVEN))[-1]


def test_gpus_for_a_speed_reach_it_and_one_verifier_fewer_does_not() -> None:
    given_ = under(64)
    start = fleet(engine("Llama-3.1-70B", "H100", 2, "fp8"))
    drafts = [draft(acceptance=0.75)]
    found = spared(start, drafts, start.verifier.gpu, 8, 50.0, given_)
    assert found.plain is not None
    assert found.drafted is not None
    assert found.plain.gpus == found.plain.verifiers * found.plain.parallel
    assert found.drafted.gpus == found.drafted.verifiers * found.drafted.parallel + found.drafted.draft_gpus

    def speed(verifiers: int) -> float:
        assert found.plain is not None
        wide = replace(
            start, verifier=replace(start.verifier, parallel=found.plain.parallel), replicas=verifiers
        )
        outcome = evaluate(wide, given_)
        assert outcome is not None
        return outcome.request_rate

    assert speed(found.plain.verifiers) >= 50.0
    if found.plain.verifiers > 1:
        assert speed(found.plain.verifiers - 1) < 50.0
    assert spared(start, drafts, start.verifier.gpu, 8, 1e6, given_).plain is None


def test_the_least_gpus_hold_the_load() -> None:
    one = fleet(engine("Llama-3.1-70B", "H100"))
    assert choose_parallel(one, 8, GIVEN) == 4
    assert choose_parallel(one, 2, GIVEN) == 2  # holds some, not all
    assert choose_parallel(one, 1, GIVEN) is None


def test_tables_say_what_single_plans_say() -> None:
    drafts = [draft()]
    rows = {row.name: row for row in by_precision(base(), drafts, base().verifier.gpu, 8, GIVEN)}
    assert list(rows) == ["bf16", "fp8", "int4"]
    assert rows["fp8"].parallel == 2
    found = keyed(options(start=fleet(engine("Llama-3.1-70B", "H100", 2, "fp8"))))
    assert found["base"].outcome is not None
    assert rows["fp8"].plain == pytest.approx(found["base"].outcome.rate)
    types = {"H100": base().verifier.gpu, "T4": engine("Llama-2-7b", "T4").gpu}
    machines = {row.name: row for row in by_gpu(base(), drafts, types, 8, GIVEN)}
    assert machines["T4"].parallel is None
    assert machines["H100"].plain == pytest.approx(rows["bf16"].plain)


def test_of_two_candidates_the_table_shows_the_better() -> None:
    candidates = [draft("Llama-3.2-1B", 0.55, 0.5, "small"), draft("Llama-3.2-3B", 0.65, 0.5, "large")]
    rows = drafts_alone(options(candidates), candidates, base().verifier.gpu, GIVEN)
    assert [row.draft for row in rows] == ["small", "large"]
    assert rows[0].pays_from is not None
    assert rows[1].pays_from is not None
    assert rows[0].pays_from < rows[1].pays_from  # a larger draft has to be right more often
    assert shape("Llama-3.2-3B").layers > shape("Llama-3.2-1B").layers
