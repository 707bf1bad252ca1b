"""Variables of the environment that are nearly those of a field are refused, not passed over."""

from pathlib import Path

import pytest

from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError


@pytest.mark.parametrize(("given", "meant"), [
    ("DILOCOXD_NETWORK_PORT", "DILOCOXD_NETWORK__PORT"),
    ("DILOCOXD_network__port", "DILOCOXD_NETWORK__PORT"),
    ("dilocoxd_log__level", "DILOCOXD_LOG__LEVEL"),
    ("DILOCOXD_PARALLEL_STAGES", "DILOCOXD_PARALLEL__STAGES"),
])  # fmt: skip
def test_name_that_is_nearly_one_of_a_field_is_refused(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").touch()
    monkeypatch.setenv(given, "4")
    with pytest.raises(
        ConfigError, match=f"^{given} is in the environment, but means nothing; did you mean {meant}\\?$"
    ):
        load_site(tmp_path / "site.toml")


@pytest.mark.parametrize("other", ["DILOCOXD_API_TOKEN", "DILOCOXD_CACHE", "DILOCOXD_NODE_KEY", "NETWORK__PORT"])
def test_variables_for_other_things_are_left_alone(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").touch()
    before = load_site(tmp_path / "site.toml")
    monkeypatch.setenv(other, "4")
    assert load_site(tmp_path / "site.toml") == before


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_value_that_no_parser_takes_is_told_as_the_text_that_it_is(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").touch()
    monkeypatch.setenv("DILOCOXD_NETWORK__PORT", value)
    with pytest.raises(ConfigError, match=r"network\.port = .*\.\.\. is wrong: give a whole number$"):
        load_site(tmp_path / "site.toml")
