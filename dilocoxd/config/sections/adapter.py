"""Section of run.toml that says which adapter a run trains, instead of all parameters."""

from typing import Annotated

from pydantic import Field, StringConstraints

from dilocoxd.config.fields import Section, Sha256Hex, knob
from dilocoxd.config.origin import FileName

LayerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,64}$")]


class LoraSection(Section):
    """A low-rank adapter (arXiv 2106.09685): only it is trained and shared; the model under it never changes, and every
    site reads it from its own copy of the files (site.toml, paths.base)."""

    rank: Annotated[
        int,
        knob(
            "Width of the adapter in each adapted layer; 0: the run trains all parameters.",
            unit="columns",
            cost="payload and memory of the adapter grow with it.",
            ge=0,
            le=4096,
        ),
    ] = 0
    alpha: Annotated[
        float,
        knob(
            "What the adapter adds is scaled by alpha / rank.", unit="1", cost="acts as a learning rate.", gt=0, le=1e6
        ),
    ] = 16.0
    targets: Annotated[
        tuple[LayerName, ...],
        knob(
            "Last names of the linear layers that are adapted, as in q_proj; empty: all in the blocks.",
            unit="names",
            cost="fewer learn less.",
            max_length=64,
            strict=False,
        ),
    ] = ()
    base_name: Annotated[
        str,
        knob(
            "What the model under the adapter is called in what is exported.",
            unit="text",
            cost="none.",
            pattern=r"^[A-Za-z0-9._/-]{0,200}$",
        ),
    ] = ""
    base_files: Annotated[
        dict[FileName, Sha256Hex],
        knob(
            "Files of weights of the model under the adapter, by name; every site needs all of them.",
            unit="sha256 in hex",
            cost="memory of the whole model in every site's trainers.",
            max_length=4096,
        ),
    ] = Field(default_factory=dict)
