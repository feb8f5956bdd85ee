"""ONNX Runtime's quantizers, run quietly, with their faults as one clear line."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

from unlag.errors import UsageError


@contextlib.contextmanager
def library_quantizer(what: str) -> Iterator[None]:
    """A place to call a quantizer in: it says nothing, and leaves logging as it was.

    The quantizers print, and advise on the root logger; one of them even configures it when it is imported.

    Raises:
        UsageError: the quantizer does not take the model.
        OSError: a file can't be read or written.
    """
    root, silenced = logging.getLogger(), logging.root.manager.disable
    handlers, level = list(root.handlers), root.level
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except (OSError, UsageError):
        raise
    except Exception as error:  # a quantizer raises what its many parts raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"{what} does not take this model: {lines[0]}") from error
    finally:
        logging.disable(silenced)
        root.setLevel(level)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
