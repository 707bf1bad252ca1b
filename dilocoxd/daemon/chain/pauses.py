"""Several parts may want the trainers to pause; they go on when the last one lets go. Decides only that."""

from typing import Protocol


class Pausable(Protocol):
    """The site."""

    def pause(self, reason: str) -> None:
        """Stop at the next inner step."""

    def resume(self) -> None:
        """Go on."""


class Pauses:
    """Reasons to pause, by who holds them."""

    def __init__(self, site: Pausable) -> None:
        self._site = site
        self._held: dict[str, str] = {}

    def reason(self, holder: str) -> str:
        """Why `holder` pauses; empty: it does not."""
        return self._held.get(holder, "")

    def hold(self, holder: str, reason: str) -> None:
        """`holder` wants a pause; the site shows the newest reason."""
        self._held[holder] = reason
        self._site.pause(reason)

    def release(self, holder: str) -> None:
        """`holder` is done; without a hold nothing happens."""
        if self._held.pop(holder, None) is None:
            return
        if self._held:
            self._site.pause(next(reversed(self._held.values())))
        else:
            self._site.resume()
