"""Models that no site can build or cut: refused in one sentence, and built once they are as it is said."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.numpy import load_file
from torch import distributed as dist, nn

import dilocoxd
from dilocoxd.daemon.sampling import Sampler
from dilocoxd.models import ModelConfig, StageModule, StageSpan, bounds, build_stage, param_specs
from dilocoxd.models.build import check_model
from dilocoxd.models.config import Adapter
from dilocoxd.models.hf import HfStage, transformers_config
from dilocoxd.models.hf_cut import CutStage
from dilocoxd.models.lora import adapt
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.installed_models import installed_model, require_transformers, required_model
from dilocoxd.store.rundir import RunDir
from dilocoxd.store.snapshots import ANCHOR_NAME
from dilocoxd.trained.model_config import SpecialTokens, config_json
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig
from dilocoxd.wire.local.outer_worker import LoadState
from tests.harness.outer_worker.in_process import InnerWorker
from tests.remedies.refused.rooms.told import commanded, told
from tests.remedies.refused.test_owners import as_anybody
from tests.unit.library.test_describe import manifest_of
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.models.test_documents import model_of
from tests.unit.models.test_models import make
from tests.unit.models.test_own import Installed, config, installed
from tests.unit.models.test_refused_configs import described

__all__ = ["installed"]
CPU: Final = torch.device("cpu")
NATIVE: Final = make("native")
WHOLE: Final = StageSpan(0, 1, 0, NATIVE.num_layers)


def test_a_module_of_somebodys_own() -> None:
    """Its weights are loaded in the loop that has it: dilocoxd has no code of it."""
    external = replace(NATIVE, kind="external")
    with told("models/build.py", "only the training loop of the run can build its model; load the weights there"):
        build_stage(external, WHOLE, device=CPU)
    module = nn.Linear(2, 2)
    module.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})


def test_documents_that_a_model_cannot_keep_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = model_of("gpt_oss")
    with told("models/build.py", "set it to false, or use another model"):
        check_model(mixing, keeps_documents_apart=True)
    check_model(mixing, keeps_documents_apart=False)
    check_model(NATIVE, keeps_documents_apart=True)
    monkeypatch.setattr("dilocoxd.models.llama.NativeStage.takes_positions", False)
    with told("models/build.py", "so documents cannot be kept apart; set it to false"):
        check_model(NATIVE, keeps_documents_apart=True)
    check_model(NATIVE, keeps_documents_apart=False)


def test_options_of_the_library() -> None:
    with told("models/hf.py", "which the model section already sets: remove it from extra"):
        transformers_config(make("llama", extra={"hidden_size": 12}))
    transformers_config(make("llama", extra={}))


def test_targets_of_an_adapter() -> None:
    def specs(*targets: str) -> None:
        param_specs(replace(model_of("llama"), adapter=Adapter(2, 4.0, targets)))

    with told("models/lora.py", "no linear layer is called VALUE; choose from"):
        specs("qkv")
    specs("q_proj")
    blocks = nn.ModuleList([nn.ModuleDict({"first": nn.Linear(2, 2), "both": nn.Linear(2, 2)}),
                            nn.ModuleDict({"both": nn.Linear(2, 2)})])  # fmt: skip
    with told("models/lora.py", "would have no adapter; name a layer that each block has"):
        adapt(blocks, Adapter(2, 4.0, ("first",)), has_experts=False)
    adapt(blocks, Adapter(2, 4.0, ("both",)), has_experts=False)


WRONG: Final = {
    "is no dilocoxd.models.StageModule; make it one": ("PrefixStage(StageModule)", "PrefixStage(nn.Module)"),
    "global_parameters must yield each once": ("str(index)", "str(index - span.first_layer)"),
    "let nothing but the hidden states pass": ("x = self.embed(x)", "x = self.embed(x) + self.span.num_stages"),
    "on which the logits of a place must not depend": ("normed.cumsum(1) / count", "normed.flip(1).cumsum(1) / count"),
}


def test_classes_of_ones_own(installed: Installed) -> None:
    right = config("own_right", installed.put("own_right"))
    check_model(right)
    wrong = {words: config(f"own_{n}", installed.put(f"own_{n}", WRONG[words])) for n, words in enumerate(WRONG)}
    with told("models/own.py", "is no dilocoxd.models.StageModule; make it one"):
        check_model(wrong["is no dilocoxd.models.StageModule; make it one"])
    with told("models/own.py", "global_parameters must yield each once"):
        check_model(wrong["global_parameters must yield each once"])
    with told("models/own.py", "let nothing but the hidden states pass"):
        check_model(wrong["let nothing but the hidden states pass"])
    with told("models/own.py", "on which the logits of a place must not depend"):
        check_model(wrong["on which the logits of a place must not depend"])


def test_packages_that_bring_a_model(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = installed.put("own_x")
    with told("store/installed_models.py", "install one package that has it"):
        installed_model("own_y")
    installed.put("own_y")
    installed_model("own_y")
    path = installed.folder / "own_x.py"
    path.unlink()
    with told("store/installed_models.py", "but there is no such file; install the package again"):
        installed_model("own_x")
    installed.put("own_x")
    assert required_model("own_x", digest).path == path
    installed.put("own_x", ("str(index)", "str(index - 0)"))
    with told("store/installed_models.py", "install the version of the package that the run was started with"):
        required_model("own_x", digest)
    installed.put("own_x")
    required_model("own_x", digest)


def test_a_file_of_a_model_that_cannot_be_read(installed: Installed) -> None:
    installed.put("own_z")
    path = installed.folder / "own_z.py"
    path.chmod(0)
    with told("store/installed_models.py", "cannot be read (VALUE); install the package of the model again"):
        as_anybody(installed_model, "own_z")
    path.unlink()
    installed.put("own_z")
    as_anybody(installed_model, "own_z")


def test_families_whose_stages_differ_from_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of those that runs may have does, with this library; here the second stage of one family forgets its input
    by a part in a thousand."""

    whole = HfStage.forward

    def forgetful(self: HfStage, hidden: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        is_odd = "Qwen2" in type(self.base).__name__ and hidden.is_floating_point()
        return whole(self, hidden * 0.999 if is_odd else hidden, *more, **options)

    monkeypatch.setattr(HfStage, "forward", forgetful)
    with told("models/hf.py", "remove model.extra or use another family"):
        check_model(make("qwen2"))
    check_model(make("llama"))
    cut = CutStage.forward

    def cut_off(self: CutStage, hidden: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        is_odd = "Olmo2" in type(self.base).__name__ and hidden.is_floating_point()
        return cut(self, hidden * 0.999 if is_odd else hidden, *more, **options)

    monkeypatch.setattr(CutStage, "forward", cut_off)
    with told("models/hf_check.py", "use another model"):
        check_model(model_of("olmo2"))
    check_model(model_of("llama"))


def test_configs_that_ask_a_library_for_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a peer's manifest may bring them."""
    monkeypatch.setattr(bounds, "MEMORY_BYTES_MAX", 1 << 30)
    shared = FAMILY_CONFIGS["deepseek_v3"]
    with told("models/bounds.py", "GiB of memory; correct that field, or use the config.json of a whole model"):
        check_model(ModelConfig.of_run(described(shared | {"n_shared_experts": 10**8})))
    check_model(ModelConfig.of_run(described(shared | {"n_shared_experts": 1})))
    with (
        told("models/bounds.py", "s of CPU time; correct that field, or use the config.json"),
        bounds.LibraryBounds("llama") as held,
    ):
        held.too_long(0, None)
    plain = FAMILY_CONFIGS["llama tied"]
    with told("models/bounds.py", "VALUE; correct that field, or use the config.json of a whole model"):
        check_model(ModelConfig.of_run(described(plain | {"return_dict": False})))
    check_model(ModelConfig.of_run(described(plain)))
    named = {name: value for name, value in plain.items() if name != "num_hidden_layers"}
    with told("models/hf_cut.py", "give it as VALUE, once"):
        make_plan(described(named | {"n_layer": 4}))
    make_plan(described(named | {"num_hidden_layers": 4}))
    with told("outerworker/plan.py", "use the config.json of a known model, or widen that one by hidden_size"):
        make_plan(described(plain | {"head_dim": 1 << 22}))
    make_plan(described(plain | {"hidden_size": 64}))


def test_the_library_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.path", [])
        with told("store/installed_models.py", "install it with: pip install 'dilocoxd[hf]'"):
            require_transformers("this")
    require_transformers("this")


def test_a_class_that_does_not_say_what_its_blocks_are(_one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.models.llama.NativeStage.blocks", StageModule.blocks)
    default = PipelineConfig(1, batch_sequences=2, num_microbatches=1)
    with told("models/stage.py", "leave these at their defaults"):
        Pipeline(NATIVE, replace(default, is_checkpointed=True), device=CPU)
    Pipeline(NATIVE, default, device=CPU)


@pytest.fixture
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_class_that_takes_no_targets(_one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.models.llama.NativeStage.takes_targets", False)
    wanted = PipelineConfig(1, batch_sequences=2, num_microbatches=1, loss_chunk_tokens=5)
    with told("trainer/pipeline.py", "does not (takes_targets); set it to 0"):
        Pipeline(NATIVE, wanted, device=CPU)
    Pipeline(NATIVE, replace(wanted, loss_chunk_tokens=0), device=CPU)


def test_a_module_of_somebodys_own_has_no_config(tmp_path: Path) -> None:
    module = nn.Linear(2, 3)
    dilocoxd.describe(module, tmp_path / "m")
    manifest = manifest_of(tmp_path / "m")
    with told("trained/model_config.py", "load snapshots/N/anchor.safetensors into your own module"):
        config_json(manifest.model, SpecialTokens(), "float32")
    sampler = Sampler(RunDir(tmp_path), has_own_loop=True)
    with commanded("daemon/sampling.py", "load RUN_DIR/snapshots/ROUND/anchor.safetensors into it"):
        asyncio.run(sampler.ask("some"))
    worker = InnerWorker(make_plan(manifest))
    worker.do(LoadState, "")
    worker.write_snapshot(tmp_path / "0")
    module.load_state_dict(
        {name: torch.from_numpy(one) for name, one in load_file(tmp_path / "0" / ANCHOR_NAME).items()}
    )
