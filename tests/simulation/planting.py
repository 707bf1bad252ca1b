"""How a bug is planted: what the machines call is replaced while a schedule runs, and put back behind it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

Bug = Callable[[], contextlib.AbstractContextManager[Any]]


def replaced(owner: Any, name: str, value: Any) -> Bug:
    return lambda: mock.patch.object(owner, name, value)


def both(*bugs: Bug) -> Bug:
    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for bug in bugs:
                stack.enter_context(bug())
            yield

    return planted
