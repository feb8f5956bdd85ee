"""What may go wrong, and what may be absent: the words every layer shares.

Libraries raise, only ``cli`` catches and prints. An error message says what is wrong; its hint says
what to type or change next.
"""

from __future__ import annotations

import msgspec


class UnlagError(Exception):
    """A failure that unlag can name in one line. ``exit_code`` is what the command returns."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(UnlagError):
    """Wrong usage, or input that can't be read or run: the user can mend it."""

    exit_code = 2


class ContenderError(UsageError):
    """A contender crashed, hung, was killed or gave unusable outputs while being measured."""


class NonfiniteError(UsageError):
    """A contender's outputs hold NaN or infinity, so that there is nothing to compare."""


class Missing(msgspec.Struct, frozen=True, tag=True):
    """A fact that could not be read, and why. Never confused with zero or with "no"."""

    reason: str

    def __bool__(self) -> bool:
        """Refuse: something that isn't known is neither true nor false.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"a missing fact was taken for a truth value: {self.reason}")
