import asyncio

from deployments.verifier import progress
from deployments.verifier.progress import Progress, ProgressBoard, ProgressSender, StepReport, Use


def row(request: str, generated: int, accepted: int = 0) -> Progress:
    return Progress(request, f"{request}-0", generated, accepted, accepted, 1, [Use("code", 0, "domain")])


async def settle_over_the_wire() -> None:
    board = ProgressBoard("127.0.0.1")
    board.start()
    sender = ProgressSender(board.address, board.public_key)
    try:
        sender.send(StepReport([row("a", 3)], 1, 3))
        sender.send(StepReport([row("a", 8, accepted=4)], 1, 5))
        rows = await board.settled("a", 8, timeout_s=10)
        assert [(r.generated, r.accepted, r.drafts[0].name) for r in rows] == [(8, 4, "code")]
        assert board.generated_tokens == 8
        board.forget("a")
        assert board.of("a") == []
    finally:
        sender.close()
        board.close()


def test_totals_reach_the_replica() -> None:
    asyncio.run(settle_over_the_wire())


async def wait_in_vain() -> None:
    board = ProgressBoard("127.0.0.1")
    try:
        await board.take(StepReport([row("a", 3)], 1, 3))
        rows = await board.settled("a", 100, timeout_s=0.05)
        assert [r.generated for r in rows] == [3]
        assert await board.settled("unknown", 1, timeout_s=0.05) == []
    finally:
        board.close()


def test_totals_that_never_come_cost_the_timeout_only() -> None:
    asyncio.run(wait_in_vain())


async def flood() -> None:
    board = ProgressBoard("127.0.0.1")
    try:
        for number in range(progress.REMEMBERED_REQUESTS + 10):
            await board.take(StepReport([row(str(number), 1)], 1, 1))
        assert board.of("0") == []
        assert board.of(str(progress.REMEMBERED_REQUESTS + 9)) != []
    finally:
        board.close()


def test_the_board_forgets_the_oldest() -> None:
    asyncio.run(flood())


async def strangers() -> None:
    board, other = ProgressBoard("127.0.0.1"), ProgressBoard("127.0.0.1")
    board.start()
    sender = ProgressSender(board.address, other.public_key)  # has the wrong key
    try:
        sender.send(StepReport([row("a", 3)], 1, 3))
        assert await board.settled("a", 3, timeout_s=0.3) == []
    finally:
        sender.close()
        board.close()
        other.close()


def test_who_does_not_have_the_key_is_not_heard() -> None:
    asyncio.run(strangers())


def test_a_replica_that_does_not_read_never_holds_up_a_step() -> None:
    _, key = b"", progress.zmq.curve_keypair()[0].decode()
    sender = ProgressSender("tcp://127.0.0.1:9", key)  # nobody there
    try:
        for _ in range(progress.QUEUE_LIMIT * 4):
            sender.send(StepReport([row("a", 3)], 1, 3))
        assert sender.dropped >= progress.QUEUE_LIMIT
    finally:
        sender.close()
