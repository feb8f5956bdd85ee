"""What may go wrong, and what may be absent: the words every layer shares.

Libraries raise, only ``cli`` catches and prints. An error message says what is wrong; its hint says
what to type or change next.
"""

from __future__ import annotations

from collections.abc import Iterable

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


class RunError(ContenderError):
    """The runtime refused to run a contender on the inputs that it was given."""


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


NEAR = 0.75
"""Similarity (difflib's ratio) from which one name is taken for a slip of another: ``optimisation`` has 0.92,
``tpu`` for ``npu`` 0.67."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint with the known names that are nearly this one, then ``otherwise``."""
    import difflib  # noqa: PLC0415 - only a mistyped name pays for it

    near = difflib.get_close_matches(name, list(known), n=3, cutoff=NEAR)
    return " ".join(filter(None, (f"did you mean {' or '.join(near)}?" if near else "", otherwise)))
