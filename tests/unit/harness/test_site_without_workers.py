"""A made-up site says of nothing that it has been done, unless it has: what follows would look like our own fault."""

from pathlib import Path

import pytest

from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from tests.harness.synthetic.fake_site import FakeSite


async def test_no_snapshot_is_said_to_be_where_none_is(tmp_path: Path) -> None:
    site = FakeSite(SiteSettings(tmp_path, "arrival", 1, 1, 0), lambda event: None)
    with pytest.raises(RequestRefused, match="a site without workers writes no snapshot"):
        await site.write_snapshot(str(tmp_path / "1"))
    assert not (tmp_path / "1").exists()
