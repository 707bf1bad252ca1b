"""What `start`, `join` and `run` refuse before anything is written or started, all of it at once, and how to go on."""

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.doctor import machine as doctor_machine
from dilocoxd.cli.doctor.before_start import check_before_start
from dilocoxd.cli.main import cli
from dilocoxd.config.footprint.estimate import site_estimate
from dilocoxd.config.hugging_face import canonical_config
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import OUTER_PARTS_MAX, site_problems
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.machine_memory import MachineMemory, machine_memory
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.settings import load_settings, make_settings, threads_that_fit
from dilocoxd.wire.placement import PARTS_MAX
from tests.harness.running.run_directories import free_port
from tests.unit.models.families import FAMILY_CONFIGS

HUGE = {"hidden_size": 8192, "intermediate_size": 32768, "num_layers": 48}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def site(**parallel: object) -> SiteConfig:
    tables = {"network": {"host": "127.0.0.1", "port": free_port()}, "api": {"port": free_port()}, "parallel": parallel}
    return validated(SiteConfig, tables, source="test")


def huge() -> Manifest:
    """Some 50 billion parameters."""
    return new_manifest("tiny", {"model": dict(HUGE)})


def test_both_ports_are_told_at_once_with_their_options(tmp_path: Path, taken: int) -> None:
    folder = tmp_path / "run"
    both = r"port \d+ cannot be .* --port .* Also: .*port \d+ cannot be .* --api-port"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        options = ["--host", "127.0.0.1", "--port", str(taken), "--api-port", str(other.getsockname()[1])]
        with pytest.raises(ConfigError, match=both):
            invoke("start", "tiny", "--dir", str(folder), *options)
    assert not folder.exists()


def test_a_taken_port_is_told_before_weights_are_read(tmp_path: Path, taken: int) -> None:
    """Reading them takes minutes; those here are missing, which is found when they are read."""
    (tmp_path / "config.json").write_text(json.dumps(FAMILY_CONFIGS["llama tied"]))
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.save(str(tmp_path / "tokenizer.json"))
    folder, port = tmp_path / "run", ("--host", "127.0.0.1", "--port", str(taken), "--api-port", "0")
    for origin in (("--init", str(tmp_path)), ("--config", str(tmp_path / "config.json"))):
        done = CliRunner().invoke(cli, ["start", "tiny", *origin, "--dir", str(folder), *port], standalone_mode=False)
        assert isinstance(done.exception, ConfigError) and "model: " not in done.stderr
        assert re.search(r"port \d+ cannot be listened on.* give another port with --port", str(done.exception))
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        invoke("init", "tiny", "--init", str(tmp_path), "--dir", str(folder))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "tokenizer.json"}


def test_join_tells_of_a_taken_port_before_it_reads_weights(tmp_path: Path, taken: int) -> None:
    """A link of the directory's own leads to itself, so that nobody else is asked."""
    folder, common = tmp_path / "run", ("--host", "127.0.0.1", "--port", str(free_port()), "--api-port", "0")
    made = invoke("init", "tiny", "--dir", str(folder), *common)
    link = made.output.split("dilocoxd join ")[1].split()[0]
    again = ("join", link, "--dir", str(folder), "--init", str(tmp_path), "--no-run")
    with pytest.raises(ConfigError, match="not from pretrained weights; leave it out"):
        invoke(*again)
    before = (folder / "site.toml").read_text()
    with pytest.raises(ConfigError, match=r"cannot be listened on.* give another port with --api-port"):
        invoke(*again[:-1], "--api-port", str(taken))
    assert (folder / "site.toml").read_text() == before
    with open_run_dir(folder).locked(), pytest.raises(ConfigError, match=r"holds this directory.*; stop it"):
        invoke(*again[:-1], "--api-port", str(taken))


def test_one_port_for_both_is_told_before_anybody_listens(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^api\.port = 4000 is network\.port too; give one of them another port"):
        invoke("start", "tiny", "--dir", str(tmp_path / "run"), "--port", "4000", "--api-port", "4000")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("192.0.2.1", "192.0.2.1 is no address of this machine"),
        ("no.such.invalid", "the name 'no.such.invalid' has no"),
    ],
)
def test_host_that_is_not_here_is_told_apart_from_a_taken_port(host: str, sentence: str, tmp_path: Path) -> None:
    tables = {"network": {"host": host, "port": free_port()}, "api": {"port": 0}}
    with pytest.raises(ConfigError, match=f"{sentence}.* Give one with --host") as refused:
        check_before_start(
            new_manifest("tiny", {}), validated(SiteConfig, tables, source="test"), tmp_path, is_forced=False
        )
    assert "other program" not in str(refused.value)


def test_nothing_is_saved_when_the_options_of_run_cannot_work(tmp_path: Path, taken: int) -> None:
    folder = tmp_path / "run"
    invoke("init", "tiny", "--dir", str(folder), "--host", "127.0.0.1", "--port", str(free_port()))
    before = (folder / "site.toml").read_text()
    with pytest.raises(ConfigError, match="give another port with --api-port"):
        invoke("run", str(folder), "--api-port", str(taken))
    with pytest.raises(ConfigError, match="belongs to the run, which is fixed already"):
        invoke("run", str(folder), "--set", "outer.lr=1")
    assert (folder / "site.toml").read_text() == before


def test_too_little_memory_is_refused_and_can_be_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = r"GB available, about \d{4}\.\d GB wanted .*; --force starts anyway"
    with pytest.raises(ConfigError, match=wanted):
        check_before_start(huge(), site(), tmp_path, is_forced=False)
    check_before_start(huge(), site(), tmp_path, is_forced=True)
    assert "warning: memory: " in capsys.readouterr().err
    settings = [part for name, value in HUGE.items() for part in ("--set", f"model.{name}={value}")]
    with pytest.raises(ConfigError, match=wanted):
        invoke("start", "tiny", *settings, "--dir", str(tmp_path / "run"), "--port", "0", "--api-port", "0")
    assert not (tmp_path / "run").exists()


def test_memory_that_is_only_tight_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {}
    for available in (0, 1 << 29, 1 << 30):
        found = MachineMemory(100 << 30, available)
        monkeypatch.setattr(doctor_machine, "machine_memory", lambda found=found: found)
        levels[available] = doctor_machine.memory_finding(new_manifest("tiny", {}), site()).level
    assert levels == {0: "error", 1 << 29: "warning", 1 << 30: "ok"}


def test_what_a_run_directory_holds_already_is_not_wanted_again(tmp_path: Path) -> None:
    def wanted() -> float:
        return float(doctor_machine.disk_finding(tmp_path, huge()).text.split()[-3])

    new = wanted()
    (tmp_path / "snapshots" / "7").mkdir(parents=True)
    with (tmp_path / "snapshots" / "7" / "anchor.safetensors").open("wb") as file:
        file.truncate(100 * 10**9)
    assert wanted() == new  # no run directory: a new run is made beside somebody's folder
    (tmp_path / "run.toml").touch()
    assert new - wanted() == pytest.approx(100.0, abs=0.1)


def test_copies_on_the_gpu_want_no_main_memory() -> None:
    on_gpu, on_cpu = site_estimate(huge(), site(device="cuda", backend="nccl")), site_estimate(huge(), site())
    assert on_gpu.copies_bytes < on_cpu.copies_bytes and on_gpu.node_bytes < on_cpu.node_bytes


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"stages": 3}, "3 pipeline stages do not fit a model of 2 layers; give --stages at most 2"),
        ({"stages": 2, "microbatches": 1}, "1 microbatches cannot fill 2 pipeline stages; give --stages at most 1"),
        ({"microbatches": 5}, "does not divide into 5 microbatches"),
        ({"batch_sequences": 2}, "this run has 4 at every site"),
        (
            {"pipeline": 2, "layers_per_stage": [2, 1]},
            "names 3 layers of 2 stages, but the model has 2 layers and this",
        ),
        ({"layers_per_stage": [1, 1]}, "names 2 layers of 2 stages, but the model has 2 layers and this site 1 stages"),
        ({"schedule": "interleaved1f1b"}, "needs at least 2 ranks and 2 stages per rank, not 1 and 1"),
        ({"schedule": "zbvzerobubble", "pipeline": 2, "stages_per_process": 1}, "exactly 2 stages per rank"),
        ({"shard": 3}, "does not divide among 3 processes of a stage"),
        ({"tensor": 4}, "does not divide model.num_heads = 2; choose a divisor"),
        ({"replicate": 2, "shard": 2, "microbatches": 3}, "of 1 sequences for each process does not divide into 3"),
    ],
)
def test_cut_that_does_not_fit_the_model_is_refused_before_anything_is_written(
    parallel: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    settings = [part for item in parallel.items() for part in ("--set", f"parallel.{item[0]}={item[1]}")]
    for command in (["init", "tiny"], ["start", "tiny", "--no-run"]):
        with pytest.raises(ConfigError, match=sentence):
            invoke(*command, *settings, "--dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=sentence):
        check_before_start(new_manifest("tiny", {}), site(**parallel), tmp_path, is_forced=True)


TIED = canonical_config(FAMILY_CONFIGS["llama tied"])


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("llama", {}, ""),
        ("hf", {"config": TIED}, ""),
        ("llama", {"num_kv_heads": 1}, "does not divide model.num_kv_heads = 1"),
        ("qwen3", {"intermediate_size": 97}, "does not divide model.intermediate_size = 97"),
        ("llama", {"vocab_size": 2}, ""),
        ("llama", {"vocab_size": 1}, "leaves a process without any token of model.vocab_size = 1; choose a lower one"),
        ("llama", {"extra": {"attention_bias": True}}, "the model has attention_bias"),
        (
            "hf",
            {"config": canonical_config(FAMILY_CONFIGS["gpt2"])},
            "layers of gpt2 cannot be cut, only those of",
        ),
        ("hf", {"config": canonical_config(FAMILY_CONFIGS["mixtral"])}, "layers of mixtral cannot be cut"),
        ("python", {}, "layers of python cannot be cut"),
    ],
)
def test_layers_that_cannot_be_computed_together_are_refused(kind: str, fields: dict[str, Any], sentence: str) -> None:
    plain = new_manifest("tiny", {})
    model = plain.model.model_copy(update={"kind": kind, **fields})
    problems = site_problems(plain.model_copy(update={"model": model}), site(tensor=2))
    assert len(problems) == bool(sentence) and sentence in "".join(problems)
    assert not site_problems(plain.model_copy(update={"model": model}), site())


def test_positions_that_do_not_divide_are_refused_and_what_the_sentence_says_is_taken() -> None:
    plain = new_manifest("tiny", {})
    odd = plain.model_copy(update={"model": plain.model.model_copy(update={"seq_len": 33})})
    (problem,) = site_problems(odd, site(tensor=2, sequence=True))
    assert (
        "parallel.tensor = 2 does not divide model.seq_len = 33; choose a divisor, or set parallel.sequence" in problem
    )
    assert site_problems(odd, site(tensor=2)) == site_problems(plain, site(tensor=2, sequence=True)) == []


def test_adapter_is_not_cut_among_processes() -> None:
    plain = new_manifest("tiny", {})
    adapted = plain.model_copy(update={"lora": plain.lora.model_copy(update={"rank": 8})})
    (problem,) = site_problems(adapted, site(tensor=2))
    assert "matrices of this run's adapter cannot be cut among processes; set it to 1, and divide" in problem


def test_site_chooses_its_batch_up_to_what_the_run_allows() -> None:
    run = new_manifest("tiny", {"inner": {"batch_sequences_max": 8}})
    found = {chosen: site_problems(run, site(batch_sequences=chosen)) for chosen in (0, 2, 8, 9)}
    assert [bool(problems) for problems in found.values()] == [False, False, False, True]
    assert "this run has at most 8" in found[9][0]
    assert run.claimed_tokens_max == 2 * new_manifest("tiny", {}).claimed_tokens_max


def test_site_chooses_its_arithmetic_from_what_the_run_allows() -> None:
    plain, free = new_manifest("tiny", {}), new_manifest("tiny", {"inner": {"dtypes_allowed": ["bfloat16"]}})
    (sentence,) = site_problems(plain, site(dtype="bfloat16"))
    assert "parallel.dtype = 'bfloat16', but this run computes in float32 (inner.dtypes_allowed)" in sentence
    assert [site_problems(free, site(dtype=chosen)) for chosen in ("", "float32", "bfloat16")] == [[], [], []]
    settings = {chosen: make_settings(free, site(dtype=chosen), data_stream="x") for chosen in ("", "bfloat16")}
    assert [one.pipeline.is_bfloat16 for one in settings.values()] == [False, True]
    less = site_estimate(free, site(dtype="bfloat16")).trainer_bytes
    assert less < site_estimate(free, site()).trainer_bytes


def test_traffic_in_16_bits_asks_for_arithmetic_in_16_bits() -> None:
    free = new_manifest("tiny", {"inner": {"dtypes_allowed": ["bfloat16"]}})
    (sentence,) = site_problems(free, site(traffic="bfloat16"))
    assert "parallel.traffic = 'bfloat16' loses what float32 keeps" in sentence
    cut = {"shard": 2, "dtype": "bfloat16"}
    assert site_problems(free, site(traffic="bfloat16", **cut)) == []
    assert make_settings(free, site(traffic="bfloat16", **cut), data_stream="x").pipeline.is_narrow
    wide, narrow = (site_estimate(free, site(traffic=each, **cut)).trainer_bytes for each in ("float32", "bfloat16"))
    assert narrow < wide


def test_check_config_looks_at_both_files_together(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    invoke("init", "tiny", "--dir", str(folder))
    text = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(text.replace("pipeline = 1", "stages = 3", 1))
    done = invoke("check-config", str(folder))
    assert done.return_value == ConfigError.exit_code and "3 pipeline stages do not fit" in done.output


def test_threads_share_the_cores_unless_told_otherwise(tmp_path: Path) -> None:
    invoke("init", "tiny", "--dir", str(tmp_path / "run"))
    assert open_run_dir(tmp_path / "run").load()[1].parallel.threads_per_rank == 0
    assert threads_that_fit(1) >= threads_that_fit(2) >= threads_that_fit(10_000) == 1
    finding = doctor_machine.threads_finding(site(stages=2, threads_per_rank=512))
    assert finding.level == "warning" and "cores / stages" in finding.remedy


def test_trainers_on_nodes_want_nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four stages of eight processes three run on nodes: here are eight, on each node as many as it has places."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(24))
    fields = {"pipeline": 4, "shard": 8, "device": "cuda", "backend": "nccl"}
    chosen = validated(SiteConfig, {"parallel": fields, "cluster": {"stages": 3}}, source="test")
    found = doctor_machine.gpu_finding(doctor_machine.FoundTorch(gpus=("A",) * 8), chosen)
    assert found.level == "ok" and "8 GPU for 8 processes" in found.text
    assert "each of 8 trainer processes" in doctor_machine.threads_finding(chosen).text
    assert "536.9 MB wanted" in doctor_machine.shm_finding(chosen).text
    invoke("init", "tiny", "--dir", str(tmp_path / "run"))
    two = validated(SiteConfig, {"parallel": {"pipeline": 2}, "cluster": {"stages": 1}}, source="test")
    (tmp_path / "run" / "site.toml").write_text(two.to_toml(), encoding="utf-8")
    environment = {"DILOCOXD_RUN_DIR": str(tmp_path / "run"), "DILOCOXD_PEER": "x"}
    assert load_settings(environment).num_threads == 24
    assert load_settings({**environment, "LOCAL_WORLD_SIZE": "3"}).num_threads == 8, "three places of a node"


def test_outer_parts_share_the_cores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    for parts, threads, level in ((1, 1, "ok"), (8, 1, "ok"), (9, 1, "warning"), (4, 2, "ok"), (4, 3, "warning")):
        tables = {"workers": {"outer_parts": parts, "outer_threads": threads}}
        chosen = validated(SiteConfig, tables, source="test")
        finding = doctor_machine.threads_finding(chosen)
        assert finding.level == level, (parts, threads)
        assert ("outer workers" in finding.text) == (parts * threads > 1)


def test_memory_of_this_machine_is_known() -> None:
    found = machine_memory()
    assert 0 < found.available <= found.total


@pytest.mark.parametrize(
    ("cluster", "parallel", "told"),
    [
        ({"stages": 2}, {"pipeline": 2}, "the first stage trains on the head"),
        ({"stages": 1}, {}, "of parallel.pipeline = 1"),
        (
            {"stages": 1}, {"pipeline": 2, "schedule": "interleaved1f1b", "stages_per_process": 2},
            "a node holds only neighbouring layers; use 1f1b",
        ),
        ({"stages": 1, "host": "0.0.0.0"}, {"pipeline": 2}, "trainers on nodes need one address"),
        ({"stages": 1, "host": "8.8.8.8"}, {"pipeline": 2}, "an address of the internet"),
        ({"stages": 1, "host": "2a00::1"}, {"pipeline": 2}, "an address of the internet"),
        ({"stages": 1, "host": "8.8.8.8", "is_public": True}, {"pipeline": 2}, ""),
        ({"stages": 1, "host": "10.0.0.1"}, {"pipeline": 2}, ""),
    ],
)  # fmt: skip
def test_stages_on_nodes_that_cannot_work_are_told(
    cluster: dict[str, object], parallel: dict[str, object], told: str
) -> None:
    manifest = new_manifest("tiny", {"model": {"num_layers": 4}})
    found = site_problems(manifest, validated(SiteConfig, {"cluster": cluster, "parallel": parallel}, source="test"))
    assert (told in found[0] and f"cluster.stages = {cluster['stages']}" in found[0]) if told else not found


@pytest.mark.parametrize(("away", "is_told"), [(56, False), (57, True)])
def test_parts_on_all_machines_together_are_as_many_as_can_be_placed(away: int, is_told: bool) -> None:
    tables: dict[str, dict[str, object]] = {"workers": {"outer_parts": 8}, "cluster": {"outer_parts": away}}
    found = site_problems(new_manifest("tiny", {}), validated(SiteConfig, tables, source="test"))
    assert found == (["workers.outer_parts = 8 and cluster.outer_parts = 57 are 65 parts, and a site may have 64; lower"
                      " one of them"] if is_told else [])  # fmt: skip
    assert OUTER_PARTS_MAX == PARTS_MAX


@pytest.mark.parametrize(
    ("network", "cluster", "told"),
    [
        ({}, {"outer_parts": 1}, ""),
        ({"data": "nodes"}, {"outer_parts": 1}, ""),
        ({"data": "nodes"}, {}, "set network.data to 'head', or cluster.outer_parts"),
        ({"data": "nodes"}, {"stages": 1}, "no outer part of this site runs on a node"),
        ({"data": "nodes", "data_connections": 0}, {"outer_parts": 1}, "or raise network.data_connections"),
    ],
)
def test_nodes_that_cannot_send_payloads_are_told(
    network: dict[str, object], cluster: dict[str, object], told: str
) -> None:
    tables = {"network": network, "cluster": cluster, "parallel": {"pipeline": 2}}
    found = site_problems(new_manifest("tiny", {}), validated(SiteConfig, tables, source="test"))
    assert [told in problem for problem in found] == ([True] if told else [])


def test_stages_on_nodes_take_no_memory_of_the_head() -> None:
    whole, half = ({"parallel": {"pipeline": 4}, "cluster": {"stages": away}} for away in (0, 2))
    weights = [site_estimate(huge(), validated(SiteConfig, each, source="test")) for each in (whole, half)]
    of_two_stages = weights[0].copies_bytes - weights[1].copies_bytes
    assert of_two_stages > weights[1].trainer_bytes, "trainers of two stages are elsewhere"
    assert weights[0].trainer_bytes == weights[1].trainer_bytes and weights[0].state_bytes == weights[1].state_bytes
