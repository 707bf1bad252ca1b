"""Every remedy that operators are told, by name; and those that no test follows, each with the reason."""

from dilocoxd.cli.doctor.findings import FINDINGS
from dilocoxd.cli.exit_codes import EXIT_CODES
from dilocoxd.telemetry.alerts import KINDS
from tests.architecture.operations import HEALTH

REMEDIES = {
    **{f"alert:{kind.code}": kind.remedy for kind in KINDS},
    **{f"finding:{check}": remedy for check, (_, remedy) in FINDINGS.items()},
    **{f"health:{number}": row[3] for number, row in enumerate(HEALTH, 1)},
    **{f"exit:{row.code}": row.remedy for row in EXIT_CODES},
}

OTHER_PEOPLE = "asks another person or another machine's firewall, router or relay"
MACHINE = "would change the machine that runs the tests: its clock, memory, Python, drivers, kernel"
READING = "tells where to read; that the text there leads on is not shown"
UNTRIED = {
    "alert:site_failed": READING, "alert:loop_blocked": MACHINE,
    "alert:digest_mismatch": MACHINE,
    "alert:double_vote": OTHER_PEOPLE,
    "alert:outsized_contribution": OTHER_PEOPLE, "alert:contrary_contribution": OTHER_PEOPLE,
    "alert:state_spoiled": "asks for another run, another person, or a test of the GPU",
    "finding:clock": MACHINE, "finding:ways": OTHER_PEOPLE,
}  # fmt: skip
