"""The daemon allows itself as many open files as its machine lets it have, and its data connections may want."""

import subprocess
import sys

import pytest

from dilocoxd.daemon.process.open_files import FILES_WANTED

ASK = (
    "import resource as r; from dilocoxd.daemon.process.open_files import allow_open_files;"
    " allow_open_files(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
)


@pytest.mark.parametrize(("soft", "hard", "found"), [(256, 3000, 3000), (3000, 3000, 3000), (256, None, FILES_WANTED)])
def test_soft_limit_is_raised_and_the_hard_one_stays(soft: int, hard: int | None, found: int) -> None:
    limits = f"ulimit -S -n {soft}; " + (f"ulimit -H -n {hard}; " if hard is not None else "")
    script = f"{limits}ulimit -H -n; {sys.executable} -c '{ASK}'"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    allowed = before if before.isdigit() else "-1"
    most = int(allowed) if int(allowed) >= 0 else found
    assert after.split() == [str(min(found, most)), allowed]
