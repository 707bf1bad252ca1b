"""Property tests try the same examples in each run; DILOCOXD_NEW_EXAMPLES=1 looks for new ones."""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.load_profile("default" if os.environ.get("DILOCOXD_NEW_EXAMPLES") else "fixed")
