"""Files that are no TOML are named in one sentence, whatever is wrong with them."""

from pathlib import Path

import pytest

from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError


@pytest.mark.parametrize("written", [f"x = {'9' * 5000}", f"x = {'[' * 5000}", "x = '\xe9'"])
def test_file_that_no_parser_takes_is_told_by_name(written: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(written.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"site\.toml: not valid TOML \(.*\); correct that line$"):
        load_site(path)


def test_mark_in_front_that_some_editors_write_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(b"\xef\xbb\xbf[network]\nport = 4\n")
    assert load_site(path).network.port == 4
