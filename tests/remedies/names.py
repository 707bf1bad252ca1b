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

UNTRIED: dict[str, str] = {}
