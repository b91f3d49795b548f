"""Mistakes that the person at the keyboard can mend, told in one line."""

import sys
from types import TracebackType


class UserError(SystemExit):
    """Bad input, a bad option or a bad file, told in one line that says what to do.

    It derives from ``SystemExit``, so that a command line tool which does not catch it ends with exit status 1 and
    prints the message to standard error, without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"error: {message}")


def tell_asserted_options_in_one_line() -> None:
    """fairseq's tools assert some things about their options before they ask the task, and each of these messages
    begins with the option: from here on such an assertion ends the process with that line, not with a traceback.
    """
    otherwise = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if kind is AssertionError and str(error).startswith("--"):
            advice = ": give --beam 1" if str(error).startswith("--sampling") else ""
            print(f"error: {error}{advice}", file=sys.stderr)
        else:
            otherwise(kind, error, trace)

    sys.excepthook = tell
