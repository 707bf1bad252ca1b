"""Without rules E9 and I10: texts, names and manifests of peers may hold anything."""

import re

from dilocoxd.config import manifest
from dilocoxd.wire import codec, records

NOTHING = re.compile(r"(?!)")


def apply() -> None:
    """No character is a control character, and every text is a name."""
    codec.CONTROL = NOTHING
    manifest.CONTROL = NOTHING
    records.is_site_name = lambda text: True
