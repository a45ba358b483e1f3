"""How a long run tells how far it is, and how it is asked to stop."""

from __future__ import annotations

from collections.abc import Callable

from deployments.distillation.errors import Stopped

#: Tells how far a part is: its name, what is done, of how much, and a remark. Time left follows from it.
Report = Callable[[str, float, float, str], None]


class Stop:
    """A wish to stop, set by a signal handler and heeded where nothing is lost by it."""

    def __init__(self) -> None:
        self.wanted = False

    def check(self) -> None:
        """Raise when a stop is wanted.

        Raises:
            Stopped: it is.
        """
        if self.wanted:
            raise Stopped("stopped; what is done so far is kept")
