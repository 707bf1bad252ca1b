"""`dilocoxd evaluate`: how well what a run has learnt predicts text."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from dilocoxd.cli.model.options import (
    LOAD_IT,
    built_run_of,
    cache_of,
    cache_option,
    round_option,
    tell_of_newer,
    tokenizer_of,
    tokenizer_option,
)


@click.command()
@click.argument("path", metavar="RUN_DIR | SNAPSHOT", type=click.Path(path_type=Path))
@click.option("--text", metavar="FILE", type=click.Path(path_type=Path), help="Perplexity on this UTF-8 text instead.")
@round_option
@tokenizer_option
@cache_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    path: Path, text: Path | None, number: int | None, tokenizer: Path | None, cache: Path | None, as_json: bool
) -> int:
    """Validation loss of the shared model on the run's held-out text, or perplexity on a text of your own.

    Of a run on several token stores: over all, then on what each of them holds out.

    On the CPU, also beside a running daemon. For benchmarks export the model and use `lm_eval --model hf`.
    """
    # Only here: torch takes seconds to load.
    from dilocoxd.trained.measure import measure_text, measure_validation

    def tell(line: str) -> None:
        click.echo(f"evaluate: {line}", err=True)

    run = built_run_of(path, f"give Site() a function as evaluate=, or {LOAD_IT}")
    if text is not None:
        found = [measure_text(run, number, tokenizer_of(run, tokenizer, cache), text, tell)]
    else:
        found = measure_validation(run, number, cache or cache_of(run), tell)
    if as_json:
        tables = [asdict(one) | {"perplexity": one.perplexity} for one in found]
        click.echo(json.dumps(tables[0] | ({"by_source": tables[1:]} if tables[1:] else {}), indent=1))
        return 0
    for one in found:
        bits = f", {one.bits_per_byte:.4f} bits per byte" if one.bits_per_byte else ""
        click.echo(
            f"round {one.round}, {one.source}: loss {one.loss:.4f} nats per token, perplexity {one.perplexity:.4g}"
            f"{bits} ({one.num_tokens:,} tokens)"
        )
    if number is None:
        tell_of_newer(run, found[0].round, tell)
    return 0
