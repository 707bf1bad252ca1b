"""The `dilocoxd` command. Exit codes: 0 done, 1 failed, 2 wrong usage, 78 the configuration must be changed.

Ctrl-C while a command still loads its modules ends it without a traceback: the first import already is under way before
any function of ours could catch it.
"""

import sys
from types import TracebackType


def _end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _end_quietly
