"""Fixes the text of a new run: prepares it in a process of its own and puts the hashes into the manifest.

Every site that joins later must come to the same hashes, or it refuses to train (docs/internals.md section 2).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError


def with_text_hashes(manifest: Manifest, site: SiteConfig) -> Manifest:
    """`manifest` with data.sha256 and tokenizer.sha256 filled in; progress goes to stderr.

    Nothing is done if both are there already. Raises ConfigError when the corpus cannot be had.
    """
    if manifest.data.sha256 and manifest.tokenizer.sha256:
        return manifest
    with tempfile.TemporaryDirectory(prefix="dilocoxd-start-") as folder:
        run_toml = Path(folder) / "run.toml"
        run_toml.write_text(manifest.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", "dilocoxd.trainer.prepare", "--run-toml", str(run_toml)]
        if site.paths.cache:
            command += ["--cache", str(Path(site.paths.cache).expanduser())]
        found, problem = _run(command)
    if problem:
        raise ConfigError(problem)
    data = manifest.data.model_copy(update={"sha256": found["data_sha256"]})
    tokenizer = manifest.tokenizer.model_copy(update={"sha256": found["tokenizer_sha256"]})
    return manifest.model_copy(update={"data": data, "tokenizer": tokenizer})


def _run(command: list[str]) -> tuple[dict[str, str], str]:
    """(what it found, why it failed or empty)."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last = ""
        for line in process.stderr:
            last = line.strip()
            if not last.startswith("error: "):
                click.echo(f"text: {last}", err=True)
        answer = process.stdout.read()
    if process.returncode:
        return {}, last.removeprefix("error: ") or f"preparing the text failed with status {process.returncode}"
    return json.loads(answer), ""
