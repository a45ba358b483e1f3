"""A call ends at its other end however it ends here."""

import asyncio
from typing import Any

import pytest

from deployments.gateway.calls import ask


class Counting:
    """A call that answers 0, 1, 2 ... up to `last` and then hangs, or ends if there is no `hang`."""

    def __init__(self, last: int, *, hang: bool) -> None:
        self.next, self.last, self.hang = 0, last, hang
        self.cancelled = False

    async def __anext__(self) -> int:
        if self.next == self.last:
            if self.hang:
                await asyncio.Event().wait()
            raise StopAsyncIteration
        self.next += 1
        return self.next - 1

    def cancel(self) -> None:
        self.cancelled = True


async def take(call: Counting, timeout_s: float) -> list[Any]:
    return [answer async for answer in ask(lambda: call, timeout_s)]


@pytest.mark.asyncio
async def test_a_call_that_ended_is_left_alone() -> None:
    call = Counting(3, hang=False)
    assert await take(call, 60) == [0, 1, 2]
    assert not call.cancelled


@pytest.mark.asyncio
async def test_the_deadline_covers_all_answers() -> None:
    call = Counting(3, hang=True)
    with pytest.raises(TimeoutError):
        await take(call, 0.05)
    assert call.next == 3
    assert call.cancelled


@pytest.mark.asyncio
async def test_who_stops_asking_ends_the_call() -> None:
    call = Counting(3, hang=True)
    answers = ask(lambda: call, 60)
    assert await anext(answers) == 0
    await answers.aclose()
    assert call.cancelled


@pytest.mark.asyncio
async def test_who_is_cancelled_ends_the_call() -> None:
    call = Counting(0, hang=True)
    task = asyncio.ensure_future(take(call, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.cancelled
