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

EVICT = "`dilocoxd evict` is followed for alert:double_vote; wrong numbers take real workers"
MACHINE = "would change the machine that runs the tests: its clock or memory"
UNTRIED = {
    "alert:digest_mismatch": MACHINE, "finding:clock": MACHINE,
    "alert:outsized_contribution": EVICT,
    "alert:contrary_contribution": EVICT,
    "alert:evicted": "is followed by tests/integration/admission/test_evicted.py",
    "alert:state_spoiled": "asks for another run, another person, or a test of the GPU",
}  # fmt: skip
