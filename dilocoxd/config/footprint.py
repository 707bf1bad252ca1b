"""Decides how much memory and disk a run wants of a site: near enough to refuse what cannot be, before torch is loaded.

The planner (planner/footprint.py) counts every parameter and adds what depends on batch, payload and number of sites;
what a parameter costs is said here for both, and a test holds the two together (docs/planning.md).
"""

from typing import Final

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.segments import num_parameters
from dilocoxd.config.site import SiteConfig

OUTER_COPIES: Final = 5
"""The outer worker needs at most 5 x the parameters in fp32 (docs/internals.md)."""
PARAMETER_BYTES: Final = {"adamw": 24, "muon": 20}
"""In a trainer, on the GPU if there is one: parameter, gradient, moments, anchor of the phase, copy for evaluations;
muon has one moment less."""
OVERLAY_BYTES: Final = 16
"""delay = eager keeps four more copies."""
PROCESSES_BYTES: Final = 1 << 30
"""All processes of a site without a model."""
_FP32: Final = 4


def parameters(manifest: Manifest) -> int:
    """Parameters of the model, near enough for memory and disk."""
    return num_parameters(manifest.model)


def trainer_parameter_bytes(manifest: Manifest) -> int:
    """What each parameter takes in a trainer."""
    overlay = OVERLAY_BYTES if manifest.strategy.delay == "eager" else 0
    return PARAMETER_BYTES[manifest.inner.optimizer] + overlay


def model_bytes(manifest: Manifest, site: SiteConfig | None) -> int:
    """Main memory for the copies of the model that a site holds; activations come on top."""
    replicas = 1 if site is None else site.parallel.replicate
    trains_here = site is None or site.parallel.device == "cpu"
    each = OUTER_COPIES * _FP32 + (replicas * trainer_parameter_bytes(manifest) if trains_here else 0)
    return each * parameters(manifest)


def snapshot_bytes(manifest: Manifest) -> int:
    """Anchor and momentum in fp32."""
    return 2 * _FP32 * parameters(manifest)
