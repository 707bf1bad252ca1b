"""Unit, compose file, Slurm script and Kubernetes example for sites of several machines: what they type is understood,
and head and nodes of each fit each other."""

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.config.sections.cluster import DEFAULT_NODE_PORT
from dilocoxd.config.site import SiteConfig
from dilocoxd.store.rundir import open_run_dir
from tests.unit.operations.test_manifests import DOCKERFILE, ROOT, compose, unit

NODE_UNIT = "dilocoxd-node.service"
SLURM = ROOT / "examples" / "cluster" / "slurm.sh"
OWN_OF_THE_DAEMON = {"Type", "NotifyAccess", "LoadCredential", "TimeoutStartSec", "WatchdogSec"}


def understood(line: str) -> dict[str, Any]:
    """What our own parser makes of a command line behind the name of the program; nothing is run."""
    name, *arguments = shlex.split(line)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"there is no `dilocoxd {name}`"
    return command.make_context(name, arguments).params


def site_made_by(line: str, folder: Path) -> SiteConfig:
    """site.toml of a run directory that `start` makes with these options."""
    options = [*shlex.split(line), "--no-run", "--dir", str(folder)]
    made = CliRunner().invoke(cli, options, standalone_mode=False)
    assert made.exception is None, made.output
    return open_run_dir(folder).load()[1]


def test_unit_of_a_node_starts_a_node_and_is_closed_in_like_the_daemon() -> None:
    node, daemon = unit(NODE_UNIT), unit("dilocoxd.service")
    line = node["ExecStart"].removeprefix("/opt/dilocoxd/bin/dilocoxd ")
    found = understood(
        line.replace("${DILOCOXD_HEAD}", "10.0.0.10")
        .replace("${DILOCOXD_PARTS}", "2")
        .replace("${DILOCOXD_STAGES}", "1")
    )
    assert (found["head"], found["parts"], found["stages"]) == ("10.0.0.10", 2, 1)
    assert found["directory"].is_relative_to("/var/lib/dilocoxd") and found["key"] == Path("/var/lib/dilocoxd/node.key")
    assert node["EnvironmentFile"] == "/etc/dilocoxd/node.conf"
    ours = {"Description", "ExecStart", "RuntimeDirectory", "Environment", "EnvironmentFile"}
    assert {key for key in node.keys() | daemon.keys() if node.get(key) != daemon.get(key)} <= ours | OWN_OF_THE_DAEMON
    assert node["Restart"] == "on-failure" and node["Type"] == "exec"


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    verify = ("systemd-analyze", "verify", "--man=no")
    for name in (NODE_UNIT, "dilocoxd.service"):
        text = (ROOT / "dilocoxd" / "shipped" / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/dilocoxd/bin/dilocoxd", "/bin/true"))
    try:
        told = subprocess.run(
            [*verify, *(str(path) for path in tmp_path.iterdir())], capture_output=True, text=True, check=False
        )  # fmt: skip
    except FileNotFoundError:
        return  # tests/systemd asks a systemd of its own
    lines = (told.stdout + told.stderr).splitlines()
    assert not [line for line in lines if "dilocoxd" in line], lines


def test_nodes_of_the_compose_file_come_to_its_head_with_its_key(tmp_path: Path) -> None:
    services = compose("compose.cluster.yaml")["services"]
    head, nodes = services["head"], [service for name, service in services.items() if name != "head"]
    typed = re.sub(r"\$\{DILOCOXD_COMMAND:-([^}]*)\}", r"\1", head["command"])
    site = site_made_by(typed, tmp_path / "run")
    found = [understood(service["command"]) for service in nodes]
    assert sum(each["parts"] for each in found) == site.cluster.outer_parts
    assert {each["head"] for each in found} == {"head"}, "with the default port"
    assert {str(each["key"]) for each in found} == {site.cluster.key_file}
    for service in services.values():
        assert any(f":{site.cluster.key_file}:ro" in volume for volume in service["volumes"])
        assert any(volume.endswith(":/var/lib/dilocoxd") for volume in service["volumes"])
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    assert len({service["volumes"][0] for service in services.values()}) == len(services), "a volume each"
    assert "cluster" in head["networks"] and all(service["networks"] == ["cluster"] for service in nodes)
    assert not [port for port in head["ports"] if str(DEFAULT_NODE_PORT) in port], "only nodes reach that port"
    assert all(service["healthcheck"] == {"disable": True} for service in nodes)


def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    """Objects of the example by kind and name."""
    text = (ROOT / "examples" / "cluster" / "kubernetes.yaml").read_text()
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(text)}


def pod_of(item: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Template, its only container, and the line that its shell runs last."""
    template = item["spec"]["template"]["spec"]
    (container,) = template["containers"]
    return template, container, container["command"][2].strip().splitlines()[-1].removeprefix("exec ")


def test_nodes_of_the_kubernetes_example_come_to_its_head_with_its_key(tmp_path: Path) -> None:
    found = kubernetes()
    head, nodes = found["StatefulSet", "dilocoxd-head"], found["StatefulSet", "dilocoxd-node"]
    (_, container, line), (_, _, node_line) = pod_of(head), pod_of(nodes)
    site = site_made_by(line.removeprefix("entrypoint "), tmp_path / "run")
    node = understood(node_line.removeprefix("dilocoxd "))
    assert head["spec"]["replicas"] == 1
    assert nodes["spec"]["replicas"] * node["parts"] == site.cluster.outer_parts
    assert node["head"] == f"{head['metadata']['name']}-0.{head['spec']['serviceName']}"
    assert str(node["key"]) == site.cluster.key_file
    assert site.cluster.host == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["nodes"] == DEFAULT_NODE_PORT
    service = found["Service", "dilocoxd-head"]["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    assert service["selector"] == head["spec"]["selector"]["matchLabels"]
    rules = found["NetworkPolicy", "dilocoxd-head"]["spec"]["ingress"]
    (only_nodes,) = [rule for rule in rules if {"port": DEFAULT_NODE_PORT} in rule["ports"]]
    assert only_nodes["from"] == [{"podSelector": nodes["spec"]["selector"]}]
    assert {each["port"] for rule in rules for each in rule["ports"]} == set(ports.values())


@pytest.mark.parametrize("name", ["dilocoxd-head", "dilocoxd-node"])
def test_pods_of_a_cluster_fit_the_image_and_keep_the_key_to_themselves(name: str) -> None:
    item = kubernetes()["StatefulSet", name]
    template, container, _ = pod_of(item)
    uid = re.search(r"^ARG UID=(\d+)$", DOCKERFILE, re.M)
    assert uid is not None and template["securityContext"]["runAsUser"] == int(uid[1])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in template["volumes"]} | {
        claim["metadata"]["name"] for claim in item["spec"]["volumeClaimTemplates"]
    }
    assert set(mounts) == volumes
    first = container["command"][2].strip().splitlines()[0]
    assert first == f"install -m 0600 {mounts['key']}/node.key {mounts['tmp']}/node.key"
    assert item["spec"]["template"]["metadata"]["labels"] == item["spec"]["selector"]["matchLabels"]


STAND_IN = """#!/bin/sh
for each in "$@"; do printf '%s\\n' "$each"; done > "$RECORDS/$(basename "$0").$$"
[ "$1" != run ] || printf '%s' "$NODE_DIR" > "$RECORDS/NODE_DIR"
case "$1" in run) [ -e "$RECORDS/once" ] || { touch "$RECORDS/once"; exit 1; };; esac
"""


def test_slurm_script_says_that_there_is_no_run_directory(tmp_path: Path) -> None:
    """It said: line 27: .../node.key: No such file or directory."""
    environment = {**os.environ, "RUN_DIR": str(tmp_path / "rum"), "SLURM_JOB_NUM_NODES": "4", "SLURMD_NODENAME": "g-1"}
    done = subprocess.run(
        ["bash", str(SLURM)], env=environment, check=False, timeout=120, capture_output=True, text=True
    )
    assert done.returncode == 78
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"RUN_DIR={tmp_path / 'rum'} is no run directory seen by g-1; make it there first")


def run_slurm(folder: Path, **programs: str) -> tuple[Path, int]:
    """Run the script with stand-ins for what neither this machine has nor the script waits for, `programs` among them:
    a folder with what each of them was told, and the exit code."""
    run_dir, records, there = folder / "run", folder / "records", folder / "programs"
    site_made_by("start tiny", run_dir)
    records.mkdir()
    there.mkdir()
    hosts = "#!/bin/sh\necho 127.0.1.1 STREAM here\necho 10.0.0.10 STREAM here\necho 10.0.0.10 DGRAM\n"
    for name, text in ({"getent": hosts} | dict.fromkeys(("dilocoxd", "srun", "sleep"), STAND_IN) | programs).items():
        (there / name).write_text(text)
        (there / name).chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{there}:{os.environ['PATH']}", "RUN_DIR": str(run_dir), "RECORDS": str(records),
        "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu-1", "PARTS": "2",
    }  # fmt: skip
    done = subprocess.run(["bash", str(SLURM)], env=environment, check=False, timeout=120)
    return records, done.returncode


def test_slurm_script_starts_no_daemon_once_the_job_is_to_end(tmp_path: Path) -> None:
    """TERM comes while it waits to start a failed one again; two minutes later nobody would ask."""
    records, code = run_slurm(tmp_path, sleep="#!/bin/sh\nkill -TERM $PPID\n")
    runs = [path for path in records.glob("dilocoxd.*") if path.read_text().startswith("run\n")]
    assert (len(runs), code) == (1, 1)


def typed_on_node(folder: Path, command: list[str], name: str) -> dict[str, Any]:
    """What the machine `name` types when srun runs `command` there."""
    records = folder / name
    records.mkdir()
    environment = {
        **os.environ, "PATH": f"{folder / 'programs'}:{os.environ['PATH']}", "RECORDS": str(records),
        "NODE_DIR": (folder / "records" / "NODE_DIR").read_text().strip(), "SLURMD_NODENAME": name,
    }  # fmt: skip
    subprocess.run(command, env=environment, check=True, timeout=120)
    (typed,) = [path.read_text().splitlines() for path in records.glob("dilocoxd.*")]
    return understood(shlex.join(typed))


def test_slurm_script_types_what_is_understood_and_starts_a_failed_head_again(tmp_path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(SLURM)], check=False).returncode == 0
    run_dir, (records, code) = tmp_path / "run", run_slurm(tmp_path)
    assert code == 0
    typed = [path.read_text().splitlines() for path in records.glob("dilocoxd.*")]
    (set_line,) = [words for words in typed if words[0] == "config"]
    made = CliRunner().invoke(cli, set_line, standalone_mode=False)
    assert made.exception is None, made.output
    cluster = open_run_dir(run_dir).load()[1].cluster
    (srun,) = [path.read_text().splitlines() for path in records.glob("srun.*")]
    nodes = {name: typed_on_node(tmp_path, srun[srun.index("bash") :], name) for name in ("gpu-2", "gpu-3")}
    node = nodes["gpu-2"]
    assert "--nodes=3" in srun and "--exclude=gpu-1" in srun
    assert (node["head"], cluster.host) == ("10.0.0.10", "10.0.0.10")
    assert 3 * node["parts"] == cluster.outer_parts == 6
    assert node["key"] == run_dir / cluster.key_file
    for name, each in nodes.items():  # of the run, not of the job: its files outlive it; and no other node's
        assert each["directory"] == Path(f"/tmp/dilocoxd-node-run-{name}")
    assert stat.S_IMODE(node["key"].stat().st_mode) == 0o600 and len(bytes.fromhex(node["key"].read_text())) == 32
    assert [words for words in typed if words[0] == "run"] == [["run", str(run_dir)]] * 2, "once more after exit code 1"
    for words in typed:
        understood(shlex.join(words)) if words[0] != "config" else None
