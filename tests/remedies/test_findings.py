"""Remedies of `dilocoxd doctor`, of two alerts and of exit code 78: broken, followed by the words, and well again."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.client import client_for
from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.doctor.command import findings
from dilocoxd.cli.doctor.findings import FINDINGS, Finding
from dilocoxd.cli.doctor.machine import memory_finding, threads_finding
from dilocoxd.cli.doctor.site import site_findings
from dilocoxd.cli.main import cli
from dilocoxd.config.footprint.estimate import site_estimate
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.telemetry.alerts import kind_of
from tests.harness.running.run_directories import free_port

HUGE = {"model": {"hidden_size": 8192, "intermediate_size": 32768, "num_layers": 48}}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with nothing wrong in it."""
    ports = ["--port", str(free_port()), "--api-port", str(free_port())]
    invoke("init", "tiny", "--dir", str(tmp_path / "run"), "--host", "127.0.0.1", *ports)
    return tmp_path / "run"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def set_site(run: Path, *assignments: str) -> None:
    invoke("config", "set", str(run), *assignments)


def of_site(run: Path) -> dict[str, Finding]:
    """What the doctor says about the site."""
    _, site = open_run_dir(run).load()
    return {one.check: one for one in site_findings(run, site, client_for(str(run)))}


def require_words(check: str, *words: str) -> None:
    """The remedy says what this test does."""
    for word in words:
        assert word in FINDINGS[check][1], f"the remedy of {check} no longer speaks of {word}: follow what it says"


@pytest.mark.remedy("finding:identity", "alert:identity_twice")
@pytest.mark.parametrize("harm", ["mode", "missing", "damaged"])
def test_key(run: Path, harm: str) -> None:
    require_words("identity", "chmod 600", "missing or damaged", "`dilocoxd identity new RUN_DIR`")
    assert "`dilocoxd identity new RUN_DIR`" in kind_of("identity_twice").remedy
    key = run / "identity.key"
    before = invoke("id", str(run)).output
    if harm == "mode":
        key.chmod(0o644)
    elif harm == "missing":
        key.unlink()
    else:
        key.write_bytes(b"no key")
    assert of_site(run)["identity"].level == "error"
    if harm == "mode":
        subprocess.run(["chmod", "600", key], check=True)
    else:
        invoke("identity", "new", str(run))
    assert of_site(run)["identity"].level == "ok"
    assert (invoke("id", str(run)).output == before) == (harm == "mode"), "a new identity is another peer"


@pytest.mark.remedy("finding:host")
def test_host(run: Path) -> None:
    require_words("host", "network.host", "0.0.0.0 is all of them")
    set_site(run, "network.host=192.0.2.1")
    assert of_site(run)["host"].level == "error"
    set_site(run, "network.host=0.0.0.0")
    assert "host" not in of_site(run)


@pytest.mark.remedy("finding:port_network", "finding:port_api", "exit:78")
@pytest.mark.parametrize(("check", "field", "option"), [
    ("port_network", "network.port", "--port"), ("port_api", "api.port", "--api-port"),
])  # fmt: skip
def test_port(run: Path, taken: int, check: str, field: str, option: str) -> None:
    require_words(check, option, field)
    set_site(run, f"{field}={taken}")
    assert of_site(run)[check].level == "error"
    with pytest.raises(ConfigError, match=rf"give another port with {option} \({field} in site.toml\)") as refused:
        invoke("run", str(run))
    assert refused.value.exit_code == 78
    set_site(run, f"{field}={free_port()}")
    assert of_site(run)[check].level == "ok"
    assert invoke("check-config", str(run)).return_value == 0


@pytest.mark.remedy("finding:port_data")
def test_data_port(run: Path, taken: int) -> None:
    require_words("port_data", "another port (network.data_port in site.toml)")
    set_site(run, "network.data_connections=8", f"network.data_port={taken}")
    assert of_site(run)["port_data"].level == "error"
    with pytest.raises(ConfigError, match=r"give another port.*\(network.data_port in site.toml\)") as refused:
        invoke("run", str(run))
    assert refused.value.exit_code == 78
    set_site(run, f"network.data_port={free_port()}")
    assert of_site(run)["port_data"].level == "ok"
    assert invoke("check-config", str(run)).return_value == 0


@pytest.mark.remedy("finding:port_nodes")
def test_port_for_nodes(run: Path, taken: int) -> None:
    require_words("port_nodes", "another port (cluster.port in site.toml")
    set_site(run, f"cluster.port={taken}")
    assert "port_nodes" not in of_site(run), "no node is expected"
    set_site(run, "cluster.outer_parts=1")
    assert of_site(run)["port_nodes"].level == "error"
    set_site(run, f"cluster.port={free_port()}")
    assert of_site(run)["port_nodes"].level == "ok"
    set_site(run, "cluster.host=192.0.2.1")
    assert of_site(run)["host"].level == "error"


@pytest.mark.remedy("finding:announce")
def test_announce(run: Path) -> None:
    require_words("announce", "Set network.announce")
    assert of_site(run)["announce"].level == "warning"
    set_site(run, 'network.announce=["198.51.100.7"]')
    assert of_site(run)["announce"].level == "ok"


@pytest.mark.remedy("finding:bootstrap")
def test_bootstrap(run: Path, taken: int) -> None:
    require_words("bootstrap", "a current join line")
    set_site(run, f'network.bootstrap=["127.0.0.1:{free_port()}"]')
    assert of_site(run)["bootstrap"].level == "error"
    set_site(run, f'network.bootstrap=["127.0.0.1:{taken}"]')
    assert of_site(run)["bootstrap"].level == "ok"


@pytest.mark.remedy("finding:threads")
def test_threads(run: Path) -> None:
    require_words("threads", "parallel.threads_per_rank", "to 0", "workers.outer_parts x workers.outer_threads")
    for field, many, few in (("parallel.threads_per_rank", 256, 0), ("workers.outer_threads", 256, 1)):
        set_site(run, f"{field}={many}")
        assert threads_finding(open_run_dir(run).load()[1]).level == "warning"
        set_site(run, f"{field}={few}")
        assert threads_finding(open_run_dir(run).load()[1]).level == "ok"


@pytest.mark.remedy("finding:memory")
def test_memory() -> None:
    require_words("memory", "a smaller model")
    assert memory_finding(new_manifest("tiny", HUGE)).level == "error"
    assert memory_finding(new_manifest("tiny", {})).level != "error"


@pytest.mark.remedy("alert:worker_trainer_lost")
@pytest.mark.parametrize("way", ["pipeline", "shard", "microbatches"])
def test_trainers_out_of_memory(run: Path, way: str) -> None:
    assert "more parallel.pipeline, shard or microbatches" in kind_of("worker_trainer_lost").remedy
    trainer = lambda: site_estimate(*open_run_dir(run).load()).trainer_bytes  # noqa: E731
    before = trainer()
    set_site(run, f"parallel.{way}=2")
    assert trainer() < before
    assert invoke("check-config", str(run)).return_value == 0


@pytest.mark.remedy("finding:config")
def test_config(run: Path) -> None:
    require_words("config", "Correct the field that the text names")
    path = run / "site.toml"
    path.write_text(re.sub(r"(?m)^port = \d+", "port = 99999", path.read_text(), count=1))
    found = next(iter(findings(run)))
    assert (found.check, found.level) == ("config", "error")
    (field,) = re.findall(r"site\.toml: ([a-z_.]+) = 99999 is wrong", found.text)
    assert field == "network.port"
    path.write_text(path.read_text().replace("port = 99999", f"port = {free_port()}"))
    assert next(iter(findings(run))).level == "ok"


@pytest.mark.remedy("finding:files")
def test_open_files() -> None:
    """A low soft limit is none of it: the daemon raises that by itself."""
    require_words("files", "`ulimit -H -n 65536` as root")
    ask = f"{sys.executable} -c 'from dilocoxd.cli.doctor.machine import files_finding; print(files_finding().level)'"
    # Root of a container may not raise a hard limit; then a shell stands for its own that never was so low.
    raised = f"if ulimit -H -n 65536 2>/dev/null; then {ask}; else exit 9; fi"
    scripts = [f"ulimit -S -n 1024; {ask}; ulimit -n 1024; {ask}; {raised}", f"{ask}; (ulimit -n 1024; {ask}); {ask}"]
    tried = (subprocess.run(["bash", "-c", one], capture_output=True, text=True, check=False) for one in scripts)
    done = next(one for one in tried if one.returncode == 0)
    assert done.stdout.split() == ["ok", "warning", "ok"]


@pytest.mark.remedy("alert:api_exposed")
@pytest.mark.parametrize("way", ["loopback", "protected"])
def test_exposed_api(run: Path, way: str) -> None:
    remedy = kind_of("api_exposed").remedy
    set_site(run, "api.host=0.0.0.0")
    assert open_run_dir(run).load()[1].api.warnings(), "what the daemon raises the alert for"
    before, after = remedy.split(", or ")
    if way == "loopback":
        (value,) = re.findall(r"api\.host = '([^']+)'", before)
        set_site(run, f"api.host={value}")
    else:
        assert all(name in after for name in ("api.read_needs_token = true", "api.tls_certificate", "api.tls_key"))
        set_site(run, "api.read_needs_token=true", "api.tls_certificate=site.crt", "api.tls_key=site.pem")
    assert not open_run_dir(run).load()[1].api.warnings()
