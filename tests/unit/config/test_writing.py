"""Written files tell what each field does, and what it may be; variables of the environment win over site.toml."""

import os
from pathlib import Path

import pytest

from dilocoxd.config.environment import with_environment
from dilocoxd.config.manifest import load_manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig, fields_of_sections, load_site
from dilocoxd.config.training import ModelSection
from dilocoxd.config.writing import choices, commented_toml, description
from dilocoxd.errors import ConfigError

MANIFEST = manifest_from_tables(preset_tables("tiny"), source="tiny")


def test_every_field_has_its_meaning_above_it_and_the_file_loads_to_the_same(tmp_path: Path) -> None:
    for config, name in ((MANIFEST, "run.toml"), (SiteConfig(), "site.toml")):
        lines = commented_toml(config).splitlines()
        fields = [number for number, line in enumerate(lines) if " = " in line and not line.startswith(("#", " "))]
        assert len(fields) > 20 and all(lines[number - 1].startswith("# ") for number in fields)
        assert max(map(len, lines)) <= 130
        (tmp_path / name).write_text("\n".join(lines))
    assert load_manifest(tmp_path / "run.toml").run_id == MANIFEST.run_id
    assert load_site(tmp_path / "site.toml") == SiteConfig()


@pytest.mark.parametrize(
    "names", [("zeros",), ("web", "code"), tuple(f"long-name-of-source-{number}" for number in range(9))]
)
def test_tables_of_sources_load_to_the_same(tmp_path: Path, names: tuple[str, ...]) -> None:
    sources = [{"name": name, "sha256": "a" * 64, "num_tokens": 1 << 40, "weight": 0.5} for name in names]
    tables = preset_tables("tiny")
    manifest = manifest_from_tables({**tables, "data": {**tables["data"], "sources": sources}}, source="tiny")
    (tmp_path / "run.toml").write_text(commented_toml(manifest))
    assert load_manifest(tmp_path / "run.toml").canonical_bytes() == manifest.canonical_bytes()


def test_choices_are_told_where_they_are_the_range() -> None:
    kind = ModelSection.model_fields["kind"]
    assert choices(kind)[0] == "native" and "Choices: native, llama, qwen2" in description(kind)
    for model in (type(MANIFEST), SiteConfig):
        for info in model.model_fields.values():
            for field in getattr(info.annotation, "model_fields", {}).values():
                assert "as the type says" not in description(field)
                assert "Unit: choice" not in description(field) or choices(field)


def test_variables_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    path.write_text("[network]\nport = 31337\nupload_bytes_per_s_max = 5000\n")
    monkeypatch.setenv("DILOCOXD_NETWORK__PORT", "31338")
    monkeypatch.setenv("DILOCOXD_SITE__NAME", "attic")
    monkeypatch.setenv("DILOCOXD_CACHE", "/elsewhere")
    site = load_site(path)
    assert (site.network.port, site.network.upload_bytes_per_s_max, site.site.name) == (31338, 5000, "attic")
    monkeypatch.setenv("DILOCOXD_NETWORK__PORT", "many")
    with pytest.raises(ConfigError, match=r"^the environment: network.port = 'many' is wrong: give a whole number"):
        load_site(path)
    path.write_text("[network]\nport = 99999\n")
    with pytest.raises(ConfigError, match=r"site.toml: network.port = 99999 is wrong"):
        load_site(path)


@pytest.mark.parametrize("name", ["DILOCOXD_OUTER__LR", "DILOCOXD_NETWRK__PORT"])
def test_a_variable_of_no_section_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is in the environment, but site.toml has no section"):
        with_environment({}, {**os.environ, name: "1"}, fields_of_sections())
