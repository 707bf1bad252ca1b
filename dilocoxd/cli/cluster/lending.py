"""How a further machine lends itself to a site: told where the site is about to run (docs/cluster.md)."""

import shlex

from dilocoxd.answers.words import plural
from dilocoxd.cli.shell.telling import say, tell
from dilocoxd.config.addresses import host_and_port, local_words
from dilocoxd.config.sections.cluster import DEFAULT_NODE_PORT, ClusterSection
from dilocoxd.store.rundir import RunDir


def tell_of_nodes(run_dir: RunDir, cluster: ClusterSection) -> None:
    """The line that is typed on a node, and the file that it needs; nothing if all of the site runs here."""
    if not cluster.has_nodes:
        return
    kinds = (("outer part", "--parts", cluster.outer_parts), ("pipeline stage", "--stages", cluster.stages))
    wanted = [(plural(count, what), f"{option} {count}") for what, option, count in kinds if count]
    key = run_dir.path / cluster.key_file
    say(
        f"for nodes: {' and '.join(words for words, _ in wanted)}; there, with a copy of {key} (mode 0600), type this"
        " line, on several with smaller numbers:"
    )
    say("", f"dilocoxd node {_head(cluster)} --key {shlex.quote(key.name)} {' '.join(option for _, option in wanted)}")
    if "this machine alone" in local_words(cluster.host):
        tell(
            f"warning: cluster.host = {cluster.host} {local_words(cluster.host)}: no other machine can be a node; give"
            " the address that nodes come to, with --set cluster.host=ADDRESS"
        )


def _head(cluster: ClusterSection) -> str:
    """What a node is told; an address that means all of this machine's leads nobody here."""
    host = "HEAD" if cluster.host in ("0.0.0.0", "::") else cluster.host
    return host if cluster.port == DEFAULT_NODE_PORT else host_and_port(host, cluster.port)
