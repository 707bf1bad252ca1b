"""A site that wants a GPU on a machine without any is refused before anything is written; in doubt it passes."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli import commands
from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.doctor import devices
from dilocoxd.cli.main import cli
from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir

INIT = ("init", "tiny", "--host", "127.0.0.1", "--port", "0", "--api-port", "0", "--dir")
ON_GPU = {"device": "cuda", "backend": "nccl"}
SENTENCE = r"parallel.device = 'cuda', but this machine shows no GPU .* set parallel.device = 'cpu' .*--device cpu"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine, whatever this one has."""
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(devices, "ROOT", tmp_path / "root")
    monkeypatch.setattr(devices, "LIBRARY", "libno-such-driver.so.1")


def level(kind: str = "native", **tables: object) -> str:
    manifest = new_manifest("tiny", {})
    manifest = manifest.model_copy(update={"model": manifest.model.model_copy(update={"kind": kind})})
    return devices.device_finding(manifest, validated(SiteConfig, tables, source="test")).level


@pytest.mark.usefixtures("without_gpu")
def test_start_writes_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=SENTENCE) as refused:
        invoke("start", *INIT[1:], str(folder), "--device", "cuda")
    assert refused.value.exit_code == 78 and not folder.exists()


@pytest.mark.usefixtures("without_gpu")
def test_run_join_and_check_config_of_such_a_directory_say_so_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    link = invoke(*INIT, str(folder), "--device", "cuda").output.split("dilocoxd join ")[1].split()[0]
    before = (folder / "site.toml").read_text()
    for command in (("run", str(folder)), ("join", link, "--dir", str(folder))):
        with pytest.raises(ConfigError, match=SENTENCE):
            invoke(*command)
    assert (folder / "site.toml").read_text() == before
    checked = invoke("check-config", str(folder))
    assert checked.return_value == 78 and "this machine shows no GPU" in checked.output


@pytest.mark.usefixtures("without_gpu")
def test_option_that_the_sentence_names_takes_the_backend_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "run_in_foreground", lambda run_dir: 0)
    folder = tmp_path / "run"
    invoke(*INIT, str(folder), "--device", "cuda")
    assert invoke("run", str(folder), "--device", "cpu").return_value == 0
    parallel = open_run_dir(folder).load()[1].parallel
    assert (parallel.device, parallel.backend) == ("cpu", "gloo")


@pytest.mark.usefixtures("without_gpu")
def test_only_work_of_this_machine_is_judged() -> None:
    assert level(parallel=ON_GPU) == "error"
    assert level(workers={"encode_device": "cuda"}) == "error"
    assert level() == "info"
    assert level(parallel=ON_GPU | {"pipeline": 2}, cluster={"stages": 1}) == "info", "its GPUs may be the nodes'"
    assert level(workers={"encode_device": "cuda"}, cluster={"outer_parts": 1}) == "info"
    assert level("external", parallel=ON_GPU) == "info", "a loop of the operator's own chooses where it computes"


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    "trace",
    ["dev/nvidia0", "dev/nvidia7", "dev/nvidiactl", "dev/nvidia-caps/nvidia-cap1", "dev/kfd", "dev/dxg", "dev/nvmap"],
)
def test_any_trace_of_a_driver_lets_it_pass(trace: str) -> None:
    (devices.ROOT / trace).parent.mkdir(parents=True)
    (devices.ROOT / trace).touch()
    assert level(parallel=ON_GPU) == "ok"


@pytest.mark.usefixtures("without_gpu")
def test_library_of_a_driver_lets_it_pass_and_hidden_gpus_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LIBRARY", "libc.so.6")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert level(parallel=ON_GPU) == "ok"
