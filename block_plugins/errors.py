"""The one exception for mistakes that the person at the keyboard can mend."""


class UserError(SystemExit):
    """Bad input, a bad option or a bad file, told in one line that says what to do.

    It derives from ``SystemExit``, so that a command line tool which does not catch it ends with exit status 1 and
    prints the message to standard error, without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"error: {message}")
