"""`dilocoxd completion`: the line or script that makes a shell complete commands and options."""

from typing import Final

import click
from click.shell_completion import get_completion_class

VARIABLE = "_DILOCOXD_COMPLETE"
BASH: Final = """
# bash cuts words at : and =, and puts what is found in the place of the last part only.
_dilocoxd_joined() {
    local word
    local -a words
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ -n $word && ${#words[@]} -gt 0 && ( ${words[-1]} == *[:=] || $word == [:=]* ) \\
            && $COMP_LINE == *"${words[-1]}$word"* ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    local -a COMP_WORDS=("${words[@]}")
    local COMP_CWORD=$((${#words[@]} - 1))
    _dilocoxd_completion "$@"
    local last=${words[-1]}
    COMPREPLY=("${COMPREPLY[@]#"${last%"${last##*[:=]}"}"}")
    if [[ $last != *[\\"\\']* ]]; then  # a quote that was begun makes whole what stands in it
        local i
        for i in "${!COMPREPLY[@]}"; do printf -v "COMPREPLY[i]" %q "${COMPREPLY[i]}"; done
    fi
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace  # a value follows at once
}
complete -o nosort -F _dilocoxd_joined dilocoxd
"""
"""Behind what click writes."""
REPLACED: Final = {
    "bash": (),
    "zsh": (
        ("    for type key", "    [[ $PREFIX != --*=* ]] || compset -P 1 '*='  # `--set=` stays\n\n    for type key"),
        (
            "        _describe -V unsorted completions_with_descriptions -U\n",
            '        local -a end=(-i "$IPREFIX")\n'
            "        [[ -z ${(M)completions_with_descriptions:#*=:*} ]] || end+=(-S '')  # a value follows at once\n"
            '        _describe -V unsorted completions_with_descriptions -U "${end[@]}"\n',
        ),
        ("compadd -U -V", 'compadd -U -i "$IPREFIX" -V'),
        (
            "    compdef _dilocoxd_completion",
            "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }\n"
            "    compdef _dilocoxd_completion",
        ),
    ),
    "fish": (
        ('string split "," $completion', 'string split --max 1 "," $completion'),
        ("            echo $metadata[2]", '            echo "$begun$metadata[2]"'),
        (
            "    for completion",
            "    set -l begun (commandline -t | string match -r -- '^--[^=]+=')\n\n    for completion",
        ),
    ),
}
"""Of what click writes: `--set=` in front of the field was lost, and so was what a description says behind a comma."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the completion script for a shell.

    bash: add `eval "$(dilocoxd completion bash)"` to ~/.bashrc. zsh: the same with zsh at the end of ~/.zshrc.
    fish: dilocoxd completion fish > ~/.config/fish/completions/dilocoxd.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that it offers"
    script = kind(context.find_root().command, {}, "dilocoxd", VARIABLE).source()
    for before, after in REPLACED[shell]:
        script = script.replace(before, after)
    click.echo(script + BASH if shell == "bash" else script)
    return 0
