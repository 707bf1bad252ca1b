"""Section of site.toml that says where things lie on this machine."""

import os
from typing import Annotated

from pydantic import Field, field_validator

from dilocoxd.config.fields import Section, knob

CorpusName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
"""What a run calls a text of its own."""
_SYSTEM_FOLDERS = ("/etc", "/dev", "/proc", "/sys", "/boot", "/bin", "/sbin", "/usr", "/lib")


class PathsSection(Section):
    """Where this site keeps what can be made again."""

    identity: Annotated[
        str, knob("Private key of this peer, relative to the run directory.", unit="path", cost="none.", min_length=1)
    ] = "identity.key"
    cache: Annotated[
        str,
        knob(
            "Tokenised corpora, shared by all runs of this machine; empty: $XDG_CACHE_HOME/dilocoxd.",
            unit="path",
            cost="disk space.",
        ),
    ] = ""
    base: Annotated[
        str,
        knob(
            "Directory of the model under the run's adapter, if it trains one ([lora] in run.toml).",
            unit="path",
            cost="none.",
        ),
    ] = ""
    corpora: Annotated[
        dict[CorpusName, str],
        knob(
            "Where the run's own texts lie on this machine, by the names that run.toml gives them (`--data"
            " NAME=PATH`). A text that is not here is fetched from a peer by `dilocoxd join`.",
            unit="path of a text file, a folder or a token store, for each name",
            cost="none.",
            max_length=64,
        ),
    ] = Field(default_factory=dict)
    corpus_bytes_max: Annotated[
        int,
        knob(
            "Most bytes of tokenised text that `dilocoxd join` fetches from a peer; 0: never any.",
            unit="bytes",
            cost="disk space; without it you need the text itself.",
            ge=0,
            le=2**40,
        ),
    ] = 4 << 30

    @field_validator("identity")
    @classmethod
    def _is_a_place_for_a_key(cls, value: str) -> str:
        _check_own(value, "paths.identity")
        return value

    @field_validator("corpora")
    @classmethod
    def _are_texts(cls, value: dict[str, str]) -> dict[str, str]:
        for name, path in value.items():
            _check_own(path, f"the text {name}", folders=("/dev", "/proc", "/sys"))
        return value


def _check_own(path: str, what: str, folders: tuple[str, ...] = _SYSTEM_FOLDERS) -> None:
    """Raises ValueError for a file of the system's."""
    real = os.path.normpath(path)
    if any(real == folder or real.startswith(f"{folder}/") for folder in folders):
        raise ValueError(f"{what} = {path!r} lies among the files of the system; give a file of your own")
