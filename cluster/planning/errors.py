"""What stops a plan, said so that a person can mend it."""

from __future__ import annotations


class PlanError(ValueError):
    """Something a plan cannot be made from.

    Attributes:
        what: what is wrong; names the thing.
        todo: what to do about it; may be empty.
    """

    def __init__(self, what: str, todo: str = "") -> None:
        self.what = what
        self.todo = todo
        super().__init__(f"{what} ({todo})" if todo else what)
