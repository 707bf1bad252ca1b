"""The tutorials work as written: each command is run, what it prints looks as shown, and the model learns.

The commands of the first one are programs as a user's shell starts them; those of the others are forks of one that is
loaded already (warm_commands.py).
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from dilocoxd.trained.found import find_run
from dilocoxd.trained.load import load_model
from tests.harness.published.reloaded import reloaded
from tests.harness.running.run_directories import free_port
from tests.tutorials.documents import ROOT, commands_of, run, shape, write_files
from tests.tutorials.warm_commands import warm_commands

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(2400)]

TIMEOUT_S = 1500.0
FIRST = "from-scratch.md"
HARNESS = ROOT / ".venv-eval" / "bin"


@dataclass(frozen=True)
class Reader:
    """Who reads the tutorials, in one folder. `followed`: commands of the first one, and what they printed."""

    folder: Path
    environment: dict[str, str]
    followed: list[tuple[str, str]]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Has followed the first tutorial; no process that runs in the folder outlives the tests."""
    folder = tmp_path_factory.mktemp("reader")
    environment = environment_in(folder)
    try:
        yield Reader(folder, environment, follow(FIRST, folder, environment))
    finally:
        end_all_in(folder)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment in which `dilocoxd` is forked."""
    with warm_commands(tmp_path_factory.mktemp("commands")) as environment:
        yield environment


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For a tutorial that needs no other; no process that runs here outlives the test."""
    yield tmp_path
    end_all_in(tmp_path)


def environment_in(folder: Path) -> dict[str, str]:
    ports = {f"API{number}": str(free_port()) for number in range(1, 6)}
    return {"DILOCOXD_CACHE": str(folder / "cache"), **ports}


def with_harness(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """`environment` with `lm_eval` on its PATH, which downloads nothing."""
    assert (HARNESS / "lm_eval").exists(), f"{HARNESS} has no lm_eval: make .venv-eval/.installed"
    path = f"{environment['PATH']}{os.pathsep}{HARNESS}"
    return environment | {"PATH": path, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}


def end_all_in(folder: Path) -> None:
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(folder) and process.pid != os.getpid():
            for one in [*process.children(recursive=True), process]:
                one.send_signal(signal.SIGKILL)


def follow(name: str, folder: Path, environment: dict[str, str]) -> list[tuple[str, str]]:
    """All commands of a tutorial with what they printed, which looks as the tutorial shows it."""
    shown = commands_of(name)
    write_files(name, folder)
    printed = run(shown, folder, environment, TIMEOUT_S)
    for one, text in zip(shown, printed, strict=True):
        lines = {shape(line) for line in text.splitlines()}
        for line in one.output:
            assert shape(line) in lines, f"{one.command}\n{text}"
    return [(one.command, text) for one, text in zip(shown, printed, strict=True)]


def losses(followed: list[tuple[str, str]]) -> list[float]:
    """Of all `dilocoxd evaluate`, in their order."""
    found = [re.search(r"loss ([0-9.]+)", text) for command, text in followed if "dilocoxd evaluate" in command]
    return [float(one.group(1)) for one in found if one is not None]


def generated(followed: list[tuple[str, str]]) -> list[str]:
    return [text for command, text in followed if command.startswith("dilocoxd generate")]


def test_from_scratch(reader: Reader) -> None:
    before, after = losses(reader.followed)
    assert after < before, "nothing was learnt"
    assert all(len(text) > 8 for text in generated(reader.followed))


def test_continue_a_model(reader: Reader, warm: dict[str, str]) -> None:
    followed = follow("continue-a-model.md", reader.folder, reader.environment | with_harness(reader.folder, warm))
    before, after = losses(followed)
    assert after < before, "nothing was learnt"
    assert all(len(text) > 8 for text in generated(followed))
    accuracy = next(text.split("|")[7] for command, text in followed if command.startswith("lm_eval"))
    assert round(3 * float(accuracy), 3) in {1, 2, 3}, "of three questions"
    number = int(re.findall(r", round (\d+)$", (reader.folder / "better" / "README.md").read_text(), re.M)[0])
    library = reloaded(reader.folder / "better")
    assert_same_logits(library, reader.folder / "better", reader.folder / "third", number)


def test_fine_tune(reader: Reader, warm: dict[str, str]) -> None:
    from peft import PeftModel

    followed = follow("fine-tune.md", reader.folder, reader.environment | warm)
    before, after = losses(followed)
    assert after < before, "nothing was learnt"
    assert all(len(text) > 8 for text in generated(followed))
    number = int(re.findall(r", round (\d+)$", (reader.folder / "adapter" / "README.md").read_text(), re.M)[0])
    base = reloaded(reader.folder / "my-model")
    adapted = PeftModel.from_pretrained(base, reader.folder / "adapter")
    assert_same_logits(adapted, reader.folder / "adapter", reader.folder / "tuned", number)


def test_own_model(folder: Path, warm: dict[str, str]) -> None:
    followed = follow("own-model.md", folder, environment_in(folder) | warm)
    before, after = losses(followed)
    assert after < before, "nothing was learnt"
    assert all(len(text) > 8 for text in generated(followed))
    exported = json.loads((folder / "my-own-model" / "config.json").read_text())
    assert exported["model_type"] == "prefix"
    names = list(load_file(folder / "my-own-model" / "model.safetensors"))
    assert "layers.1.mix.weight" in names


def test_own_data(folder: Path, warm: dict[str, str]) -> None:
    from transformers import AutoModelForCausalLM

    followed = follow("own-data.md", folder, environment_in(folder) | warm)
    before, after, chats_before, chats_after = losses(followed)
    assert after < before, "nothing was learnt from the text"
    assert chats_after < chats_before, "nothing was learnt from the chats"
    assert all(len(text) > 8 for text in generated(followed))
    samples = next(text for command, text in followed if '"^samples"' in command)
    assert re.match(r"samples +[0-9,]+ read", samples)
    AutoModelForCausalLM.from_pretrained(folder / "my-chat")


def assert_same_logits(library: torch.nn.Module, tokenizer_at: Path, run_dir: Path, number: int) -> None:
    """The library's model of the export and our own of the same round say the same, to the bit."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_at)
    ids = tokenizer("The value of the expression is an object.", return_tensors="pt")["input_ids"]
    own, _ = load_model(find_run(run_dir), number, lambda _: None)
    with torch.no_grad():
        assert torch.equal(library.eval()(input_ids=ids).logits, own(ids))
