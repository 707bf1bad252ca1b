"""Fault-tolerant peer-to-peer training daemon for large language models.

`Site` and `describe` let a training loop of your own take part in a run (docs/tutorials/own-loop.md). They load torch,
so they are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dilocoxd.library.describe import describe
    from dilocoxd.library.site import Site

__version__ = "0.1.0"
__all__ = ["Site", "__version__", "describe"]


def __getattr__(name: str) -> Any:
    if name == "Site":
        from dilocoxd.library.site import Site

        return Site
    if name == "describe":
        from dilocoxd.library.describe import describe

        return describe
    raise AttributeError(f"module 'dilocoxd' has no attribute {name!r}")
