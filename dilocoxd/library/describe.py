"""Writes down what a run must know of a torch module: names and shapes of its parameters, and their first values."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from dilocoxd.config.sections.own_module import PARAMETERS_NAME, shapes_text
from dilocoxd.errors import ConfigError
from dilocoxd.store.tensor_header import SINGLE_NAME


def shared_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that a run averages: those that are trained, in the module's own order, tied ones once.

    Raises ConfigError for a module without any, and for one whose parameters are no real numbers.
    """
    found = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
    if not found:
        raise ConfigError("the module has no parameter with requires_grad; give the one that is trained")
    for name, param in found:
        if not param.dtype.is_floating_point:
            raise ConfigError(
                f"parameter {name} is {param.dtype}; leave it out, for only floating-point parameters can be averaged"
            )
    return found


def describe(module: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the module's description to `folder`, for `dilocoxd start --module FOLDER`.

    The values that its trained parameters have now are the first state of the run: every site starts from them, and
    those that join get them from peers. Buffers are not part of a run. Raises ConfigError for a module that no run can
    have.
    """
    parameters = shared_parameters(module)
    path = Path(folder)
    try:
        text = shapes_text((name, tuple(param.shape)) for name, param in parameters)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    values = {name: param.detach().to("cpu", torch.float32).contiguous().clone() for name, param in parameters}
    try:
        path.mkdir(parents=True, exist_ok=True)
        save_file(values, path / SINGLE_NAME)
        (path / PARAMETERS_NAME).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); give describe() another folder") from error
