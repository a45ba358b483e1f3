"""A call of another deployment that has a deadline and ends at both ends at once."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol


class Call(Protocol):
    """A running call of a deployment whose answers come one by one."""

    def __anext__(self) -> Any: ...

    def cancel(self) -> None:
        """End the call at its other end."""


async def ask(call: Callable[[], Call], timeout_s: float) -> AsyncGenerator[Any, None]:
    """Call the verifier and give its answers; however this ends, the call there ends too.

    Serve cancels a call whose caller is cancelled while it waits, but not one whose caller just stops asking.

    Args:
        call: starts the call.
        timeout_s: longest from the start to the last answer, in seconds.

    Raises:
        TimeoutError: there was an answer still to come at the deadline.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    running = call()
    finished = False
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                try:
                    answer = await running.__anext__()
                except StopAsyncIteration:
                    finished = True
                    return
            yield answer
    finally:
        if not finished:
            running.cancel()
