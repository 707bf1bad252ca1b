"""Makes reference pages from code: commands, the HTTP API, what models weigh and exchange on common links."""

import inspect
from collections.abc import Iterator

import click

from dilocoxd.api.endpoints import ENDPOINTS, Endpoint
from dilocoxd.cli.configuration.figures import LINKS_MBIT, NUM_SITES, ROUND_TRIP_S, Figures, figures
from dilocoxd.cli.shell.command_table import GROUPS
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.sections.parallel import ParallelSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.planner.quantities import in_decimal, in_seconds

NOTE = "Made by `python -m tests.architecture.generated`; edit the code instead.\n"
SHAPES = {
    "125 M": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "num_kv_heads": 12, "intermediate_size": 2048},
    "350 M": {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "num_kv_heads": 16, "intermediate_size": 2816},
    "1.3 B": {"hidden_size": 2048, "num_layers": 24, "num_heads": 16, "num_kv_heads": 16, "intermediate_size": 5504},
    "7 B": {"hidden_size": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32, "intermediate_size": 11008},
}
"""Shapes of well-known models, with the vocabulary below."""
VOCABULARY = {"vocab_size": 32768, "seq_len": 1024}
SEGMENT_ELEMENTS = 1 << 24


def commands() -> str:
    """docs/commands.md."""
    lines = ["# Commands", "", NOTE, "`dilocoxd COMMAND --help` (or `-h`) says the same in the terminal.", ""]
    for group in GROUPS:
        lines += [f"## {group.title}", ""]
        for row in group.commands:
            lines += _command(f"dilocoxd {row.name}", row.load(), depth=3)
    return "\n".join(lines).rstrip("\n") + "\n"


def _command(path: str, command: click.Command, *, depth: int) -> Iterator[str]:
    # In one line, whatever the terminal. The option for help is left out: it is every command's, and click keeps the
    # names under which somebody in this process asked for it first.
    context = click.Context(command, info_name=path, terminal_width=10_000)
    yield from (f"{'#' * depth} {path}", "", "```", " ".join(command.get_usage(context).split())[7:], "```", "")
    yield from (inspect.cleandoc((command.help or "").partition("\f")[0]), "")
    rows = [_cells(record) for option in command.params if (record := option.get_help_record(context))]
    if rows:
        yield from ("| option | meaning |", "|---|---|", *rows, "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(f"{path} {name}", inner, depth=depth + 1)


def _cells(record: tuple[str, str]) -> str:
    name, text = (part.replace("|", "\\|") for part in record)
    return f"| `{name}` | {text} |"


def api() -> str:
    """docs/api.md."""
    lines = ["# HTTP API", "", NOTE]
    lines += [
        "`GET /v1/openapi.json` of a running site has every field of every answer. Commands (`POST`) need the",
        "",
    ]
    lines[-1:] = ["token of `api.token_file` in a header `Authorization: Bearer ...`.", ""]
    lines += ["| method | path | answers with | parameters | errors besides the usual | meaning |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_endpoint(one) for one in ENDPOINTS]
    return "\n".join(lines) + "\n"


def _endpoint(one: Endpoint) -> str:
    answer = getattr(one.answer, "__name__", str(one.answer))
    parameters = ", ".join(f"`{parameter.name}`" for parameter in one.parameters)
    problems = ", ".join(str(status) for status in one.problems)
    return f"| {one.method} | `{one.path}` | {answer} | {parameters} | {problems} | {one.text} |"


def hardware() -> str:
    """docs/hardware.md."""
    times = [f"{mbit} Mbit/s" for mbit in LINKS_MBIT]
    lines = ["# Hardware and links", "", NOTE]
    lines += [
        "What a run asks of one site, by the formulas of [planning.md](planning.md), which says how far they were from",
        "measurements. Memory is that of a site with one stage: everything on one node, and the part of it that the",
        "trainer holds, which must fit the GPU. More stages divide the latter. An exchange is one round's, between",
        f"{NUM_SITES} sites, with a round trip of {ROUND_TRIP_S * 1000:g} ms; it runs beside the training, and costs"
        " time only where it",
        "takes longer than a phase. `dilocoxd check-config` and `dilocoxd plan` say it for your run.",
        "",
        f"| model, strategy | parameters | node | GPU | disk | payload | {' | '.join(times)} |",
        f"|---|---|---|---|---|---|{'---|' * len(times)}",
    ]
    lines += [_row(name, figures(manifest, site)) for name, manifest, site in _runs()]
    lines += [
        "",
        "The presets' own models and strategies at a site whose site.toml says nothing, then shapes of well-known"
        f" models with a vocabulary of {VOCABULARY['vocab_size']:,},",
        f"sequences of {VOCABULARY['seq_len']:,} and the preset's batch of 16 sequences in 8 microbatches"
        " (`parallel.microbatches = 8` in site.toml).",
        "Not all of them have been trained: what was trained is in [benchmarks.md](benchmarks.md).",
    ]
    return "\n".join(lines) + "\n"


def _runs() -> Iterator[tuple[str, Manifest, SiteConfig]]:
    for name in ("tiny", "demo", "small", "small:sparseloco", "small:dilocox"):
        yield f"`{name}`", manifest_from_tables(preset_tables(name), source=name), SiteConfig()
    for label, shape in SHAPES.items():
        tables = preset_tables("small")
        tables["model"] = {**tables["model"], **VOCABULARY, **shape}
        tables["strategy"] = {**tables["strategy"], "segment_elements_max": SEGMENT_ELEMENTS}
        manifest = manifest_from_tables(tables, source=label)
        pieces = ParallelSection(microbatches=manifest.inner.microbatches)
        yield f"{label}, as `small`", manifest, SiteConfig(parallel=pieces)


def _row(name: str, found: Figures) -> str:
    sizes = (found.memory_bytes, found.trainer_bytes, found.disk_bytes, found.payload_bytes)
    cells = [f"{found.parameters:,}", *(in_decimal(size, "B") for size in sizes)]
    return f"| {name} | {' | '.join([*cells, *map(in_seconds, found.exchange_s.values())])} |"
