"""`dilocoxd generate`: text from what a run has learnt so far."""

from pathlib import Path

import click

from dilocoxd.cli.exit_codes import INTERRUPTED
from dilocoxd.cli.model.options import LOAD_IT, built_run_of, cache_option, round_option, tokenizer_of, tokenizer_option

DEFAULT_PROMPT = "The "


@click.command()
@click.argument("path", metavar="RUN_DIR | SNAPSHOT", type=click.Path(path_type=Path))
@click.option("--prompt", "prompts", multiple=True, help=f"Start of the text (repeatable); default {DEFAULT_PROMPT!r}.")
@click.option("--max-tokens", type=click.IntRange(1, 1_000_000), default=128, show_default=True, help="Longest text.")
@click.option("--temperature", type=click.FloatRange(0, 10), default=0.7, show_default=True, help="0: the likeliest.")
@click.option("--top-k", type=click.IntRange(0), default=40, show_default=True, help="Of so many; 0: all.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same text.")
@round_option
@tokenizer_option
@cache_option
def generate(
    path: Path,
    prompts: tuple[str, ...],
    max_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    number: int | None,
    tokenizer: Path | None,
    cache: Path | None,
) -> int:
    """Continue a text with the shared model. On the CPU, also beside a running daemon; Ctrl-C ends it."""
    # Only here: torch takes seconds to load.
    from dilocoxd.trained.text import Sampling, generate as pieces_of

    run = built_run_of(path, LOAD_IT)
    files = tokenizer_of(run, tokenizer, cache)
    starts = prompts or (DEFAULT_PROMPT,)
    sampling = Sampling(max_tokens, seed, temperature, top_k)
    current = -1
    try:
        for index, piece in pieces_of(run, number, files, starts, sampling, lambda text: click.echo(text, err=True)):
            if index != current:
                click.echo(("\n" if current >= 0 else "") + starts[index], nl=False)
                current = index
            click.echo(piece, nl=False)
    except KeyboardInterrupt:
        click.echo()
        return INTERRUPTED
    click.echo()
    return 0
