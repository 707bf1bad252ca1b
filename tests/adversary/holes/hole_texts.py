"""Without rule E9: texts of peers may hold anything."""

import re

from dilocoxd.wire import codec


def apply() -> None:
    """No character is a control character."""
    codec._CONTROL = re.compile(r"(?!)")
