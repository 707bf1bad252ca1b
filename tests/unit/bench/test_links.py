"""The benchmark of data connections: what it is asked for has to be whole segments."""

import pytest

from tests.bench.links.data_plane import parse


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--p2pd-mib 1", "--p2pd-mib 1 is no whole number of segments of 4096 KiB"),
        ("--mibs 64,10 --p2pd-mib 4", "--mibs 10 is no whole number of segments of 4096 KiB"),
        ("--mibs 64,0", "--mibs 0 is no whole number of segments of 4096 KiB"),
        ("--segments-kib 256,0", "--segments-kib 0 is no length of a segment"),
        ("--mibs 64", "as many rates in --mbits as lengths in --mibs"),
    ],
)
def test_payload_of_no_whole_segments_is_refused_in_one_sentence(
    options: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(options.split())
    assert ended.value.code == 2
    assert what in capsys.readouterr().err.splitlines()[-1]


def test_payloads_of_whole_segments_are_measured() -> None:
    options = parse(["--mbits", "200", "--mibs", "8", "--p2pd-mib", "1", "--segments-kib", "1024,256"])
    assert (options.mbits, options.mibs, options.p2pd_mib, options.segments_kib) == ([200.0], [8], 1, [1024, 256])
