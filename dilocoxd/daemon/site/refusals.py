"""What a refusal of the outer worker means: whose bytes do not decode, if it names somebody's."""

import re

from dilocoxd.daemon.site.interface import BadResult, BadShare
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import WorkerError


def share_or_other(refused: RequestRefused, what: str) -> WorkerError:
    """BadShare if a share does not decode, else the refusal itself."""
    if refused.kind == "bad_payload" and refused.detail.lstrip("-").isdigit():
        return BadShare(int(refused.detail), what)
    return refused


def result_or_other(refused: RequestRefused) -> WorkerError:
    """BadResult if a result does not decode, else the refusal itself."""
    named = re.match(r"result segment (\d+): ", refused.detail)
    if refused.kind == "bad_payload" and named is not None:
        return BadResult(int(named[1]), refused.detail[named.end() :])
    return refused
