"""Units, compose files and Kubernetes example agree with the daemon and with each other."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dilocoxd.config.site import ApiSection, NetworkSection
from dilocoxd.daemon.app import STOP_LIMIT_S
from dilocoxd.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
UNITS = ("dilocoxd.service", "dilocoxd@.service")


def unit(name: str) -> dict[str, str]:
    """Last value of every key."""
    lines = (ROOT / "dilocoxd" / "shipped" / "systemd" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def compose(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker" / name).read_text()))


def kubernetes() -> dict[str, dict[str, Any]]:
    """Objects of the example by kind."""
    text = (ROOT / "docs" / "operations" / "containers.md").read_text()
    found = re.search(r"```yaml\n(.*?)```", text, re.S)
    assert found is not None
    return {item["kind"]: item for item in yaml.safe_load_all(found[1])}


@pytest.mark.parametrize("name", UNITS)
def test_unit_gives_a_leaving_daemon_time_and_does_not_repeat_a_wrong_configuration(name: str) -> None:
    settings = unit(name)
    assert float(settings["TimeoutStopSec"]) > STOP_LIMIT_S
    assert str(ConfigError.exit_code) in settings["RestartPreventExitStatus"].split()
    assert settings["Type"] == "notify"
    assert settings["KillMode"] == "mixed"
    assert float(settings["WatchdogSec"]) > 0


def test_template_differs_from_the_single_unit_only_in_names() -> None:
    one, many = (unit(name) for name in UNITS)
    assert {key for key in one if one[key] != many[key]} == {
        "Description", "ExecStart", "RuntimeDirectory", "Environment", "LoadCredential",
    }  # fmt: skip
    assert one.keys() == many.keys()


@pytest.mark.parametrize("name", ["compose.yaml", "compose.swarm.yaml"])
def test_compose_sites_are_unprivileged_and_may_leave_in_peace(name: str) -> None:
    services = compose(name)["services"]
    sites = [service for service in services.values() if "dilocoxd" in service["image"]]
    assert len(sites) == (1 if name == "compose.yaml" else 3)
    for site in sites:
        assert float(site["stop_grace_period"].removesuffix("s")) > STOP_LIMIT_S
        assert site["cap_drop"] == ["ALL"]
        assert site["read_only"] is True


def test_sites_of_the_swarm_share_only_the_internet() -> None:
    services = compose("compose.swarm.yaml")["services"]
    networks = [set(services[name]["networks"]) for name in ("one", "two", "three")]
    assert networks[0] & networks[1] == networks[0] & networks[2] == networks[1] & networks[2] == {"internet"}
    assert {"watch"} == set(services["prometheus"]["profiles"]) == set(services["grafana"]["profiles"])


def test_prometheus_asks_every_site() -> None:
    settings = yaml.safe_load((ROOT / "docker" / "prometheus.yaml").read_text())
    targets = settings["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"{name}:{ApiSection().port}" for name in ("one", "two", "three")]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    services = compose("compose.swarm.yaml")["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    folders = {inside: ROOT / "docker" / outside for outside, inside in mounts.items() if outside.startswith(".")}
    provisioning = folders["/etc/grafana/provisioning"]
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    assert source["type"] == "prometheus"
    port = services["prometheus"]["ports"][0].rpartition(":")[2]
    assert source["url"] == f"http://prometheus:{port}"
    assert set(services["grafana"]["networks"]) & set(services["prometheus"]["networks"])
    provider = yaml.safe_load((provisioning / "dashboards" / "dilocoxd.yaml").read_text())["providers"][0]
    assert list(folders[provider["options"]["path"]].glob("*.json")), "no dashboard where Grafana looks"


def test_kubernetes_example_fits_the_image() -> None:
    template = kubernetes()["StatefulSet"]["spec"]["template"]["spec"]
    assert template["terminationGracePeriodSeconds"] > STOP_LIMIT_S
    uid = re.search(r"^ARG UID=(\d+)$", DOCKERFILE, re.M)
    assert uid is not None
    assert template["securityContext"]["runAsUser"] == int(uid[1])
    site = template["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in site["ports"]}
    assert ports == {"peers": NetworkSection().port, "api": ApiSection().port}
    assert {port["port"] for port in kubernetes()["Service"]["spec"]["ports"]} == set(ports.values())
    assert site["volumeMounts"][0]["mountPath"] in re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.M)
    assert site["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert site["readinessProbe"]["httpGet"]["path"] == "/readyz"
