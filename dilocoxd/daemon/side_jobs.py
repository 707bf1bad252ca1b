"""Jobs that no training waits for: one that fails says so once, and the daemon goes on without it."""

from collections.abc import Awaitable, Callable

from dilocoxd.errors import PeerError, WireError


async def run_aside(job: Awaitable[None], name: str, say: Callable[[str], None]) -> None:
    """Run `job` to its end. What fails outside of us (network, sockets, a package) is said and not raised."""
    try:
        await job
    except (PeerError, WireError, OSError, ImportError, RuntimeError, ValueError) as error:
        say(f"{name} has ended ({type(error).__name__}: {error}); training goes on without it until the next start")
