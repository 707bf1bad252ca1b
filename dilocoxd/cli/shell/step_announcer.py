"""Says every few seconds that a long step still goes on, while it says nothing itself."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

SILENCE_S: Final = 5.0


class StepAnnouncer:
    """Within `with`: repeats what was noted last, with the seconds since then, while nothing new comes."""

    def __init__(self, say: Callable[[str], None], first: str, *, every_s: float = SILENCE_S) -> None:
        self._say = say
        self._doing = first
        self._every_s = every_s
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="step announcer", daemon=True)

    def note(self, doing: str) -> None:
        """It does this now; said at once."""
        with self._changed:
            self._doing = doing
            self._say(doing)
            self._changed.notify()

    def __enter__(self) -> Self:
        self._say(self._doing)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        silent_s = 0.0
        with self._changed:
            while not self._is_over:
                if self._changed.wait(self._every_s):
                    silent_s = 0.0
                else:
                    silent_s += self._every_s
                    self._say(f"{self._doing} (for {silent_s:.0f} s)")
