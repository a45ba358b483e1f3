"""Putting replicas on GPUs."""

from __future__ import annotations

from cluster.planning.gpus import built_in
from cluster.planning.placement import Node, Unit, place

H100, L4 = built_in()["H100"], built_in()["L4"]


def verifier(gpus: float = 4, gib: float = 40.0) -> Unit:
    return Unit("the verifier", gpus, gib, 71.0, 16, "verifier.tensor_parallel_size")


def drafter(name: str, share: float, gib: float = 4.0) -> Unit:
    return Unit(f"draft {name}", share, gib, gib, 2, f"drafts.{name}.num_gpus")


def test_fractions_share_a_gpu_and_whole_ones_do_not() -> None:
    units = [drafter("a", 0.34), drafter("b", 0.33), verifier(), drafter("c", 0.33)]
    placement = place(units, [Node(H100, 8, 64)])
    assert placement.problems == ()
    tenants = [[owner for owner, *_ in slot.tenants] for slot in placement.slots]
    assert tenants[:4] == [["the verifier"]] * 4
    assert sorted(tenants[4]) == ["draft a", "draft b", "draft c"]
    assert tenants[5:] == [[], [], []]
    assert placement.used == 5


def test_ten_tenths_fill_one_gpu() -> None:
    placement = place([drafter(str(number), 0.1) for number in range(10)], [Node(H100, 2)])
    assert placement.problems == ()
    assert placement.used == 1


def test_fractions_that_do_not_add_up_take_a_second_gpu() -> None:
    assert place([drafter("a", 0.6), drafter("b", 0.6)], [Node(H100, 2)]).used == 2


def test_a_replica_stays_on_one_node() -> None:
    placement = place([verifier(4)], [Node(H100, 2), Node(H100, 2)])
    assert placement.problems == (
        "the verifier does not fit: node 0 has 2 empty GPUs of the 4 that it needs; node 1 has 2 empty GPUs "
        "of the 4 that it needs; change verifier.tensor_parallel_size, or add nodes",
    )


def test_memory_counts_where_ray_would_not_look() -> None:
    placement = place([drafter("a", 0.2, 50.0), drafter("b", 0.2, 50.0)], [Node(H100, 1)])
    assert "draft b does not fit: node 0 has 29.1 GiB left" in placement.problems[0]
    placement = place([verifier(1, 100.0)], [Node(H100, 1)])
    assert "has GPUs of 79.1 GiB, and it needs 100.0 GiB on each" in placement.problems[0]


def test_cpus_count() -> None:
    placement = place([verifier(1), drafter("a", 0.5)], [Node(H100, 8, 17)])
    assert "node 0 has 1 CPUs left of the 2 that it asks for" in placement.problems[0]
    assert place([drafter("a", 0.0), drafter("b", 0.0)], [Node(H100, 0, 2), Node(H100, 0, 2)]).problems == ()


def test_a_type_of_gpu_can_be_meant() -> None:
    unit = Unit("draft a", 1.0, 4.0, 4.0, gpu="L4")
    placement = place([unit], [Node(H100, 8), Node(L4, 1)])
    assert [slot.gpu.name for slot in placement.slots if slot.tenants] == ["L4"]
    assert "has H100, not L4" in place([unit], [Node(H100, 8)]).problems[0]


def test_the_same_problem_is_said_once() -> None:
    assert len(place([verifier(16)] * 3, [Node(H100, 8)]).problems) == 1
