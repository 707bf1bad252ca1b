"""Decides which commands there are, in which groups of the help, and where each is; a test compares the sentences."""

from typing import Final

from dilocoxd.cli.shell.grouped_help import HelpGroup
from dilocoxd.cli.shell.lazy_group import LazyCommand

CLI: Final = "dilocoxd.cli"
DECLARED: Final = f"{CLI}.declared"
GROUPS: Final = (
    HelpGroup(
        "Start and join",
        (
            LazyCommand("start", f"{DECLARED}.starting:start", "Create a run and train it here, in the foreground"),
            LazyCommand(
                "join",
                f"{DECLARED}.joining:join",
                "Fetch a run from a peer, verify it, and train along, in the foreground",
            ),
            LazyCommand(
                "node",
                f"{DECLARED}.nodes:node",
                "Run outer parts and trainers of a site whose daemon runs on another machine, in the foreground",
            ),
            LazyCommand("run", f"{DECLARED}.starting:run", "Train an existing run directory, in the foreground"),
            LazyCommand(
                "init",
                f"{DECLARED}.starting:init",
                "Create a run directory without starting it (start it with `dilocoxd run`)",
            ),
        ),
    ),
    HelpGroup(
        "Watch",
        (
            LazyCommand(
                "status",
                f"{CLI}.status:status",
                "Show how it goes: state, speed, losses, time left, the other sites, alerts",
            ),
            LazyCommand("watch", f"{DECLARED}.watching:watch", "Show the status of a daemon, live"),
            LazyCommand(
                "logs",
                f"{DECLARED}.watching:logs",
                "Show what happened at a site, newest last; details of each round with --level debug",
            ),
            LazyCommand(
                "peers",
                f"{CLI}.control:peers",
                "Show all sites, this one first: what they do, how far, how fast, when last seen",
            ),
            LazyCommand(
                "members",
                f"{DECLARED}.members:members",
                "Show who belongs to the run, by which invite, and who was evicted",
            ),
            LazyCommand(
                "ping",
                f"{CLI}.control:ping",
                "Measure how another site is reached: directly or through a relay, latency, bandwidth",
            ),
            LazyCommand(
                "rounds",
                f"{CLI}.show:rounds",
                "Show the newest rounds: who took part, how long each part took, what failed",
            ),
            LazyCommand(
                "log", f"{DECLARED}.chain:log", "Read the chain of outer steps: show it, or (daemon stopped) verify it"
            ),
            LazyCommand(
                "profile",
                f"{CLI}.control:profile",
                "Record the next inner steps of every trainer process, to see where their time goes",
            ),
            LazyCommand("snapshots", f"{CLI}.show:snapshots", "Show the snapshots on a site's disk"),
        ),
    ),
    HelpGroup(
        "Operate",
        (
            LazyCommand(
                "pause",
                f"{CLI}.control:pause",
                "Stop training at the next inner step, until `dilocoxd resume` or a restart",
            ),
            LazyCommand("resume", f"{CLI}.control:resume", "Go on training after `dilocoxd pause`"),
            LazyCommand(
                "leave", f"{CLI}.control:leave", "Settle the round, say goodbye to the others and end the daemon"
            ),
            LazyCommand("invite", f"{DECLARED}.members:invite", "Make a link with which others join the run"),
            LazyCommand(
                "evict",
                f"{DECLARED}.members:evict",
                "End the membership of a site; its invite is closed, and only a new one lets it in again",
            ),
            LazyCommand("authority", f"{DECLARED}.authority:authority", "The keys that decide who may join a run"),
            LazyCommand(
                "adopt", f"{CLI}.control:adopt", "Take another branch of the run, where the alert fork_below_final asks"
            ),
            LazyCommand("snapshot", f"{CLI}.control:snapshot", "Write the shared state to disk now"),
            LazyCommand(
                "log-level",
                f"{CLI}.control:log_level",
                "Choose which events a running daemon shows on stderr or in the journal",
            ),
        ),
    ),
    HelpGroup(
        "Models and data",
        (
            LazyCommand(
                "export",
                f"{CLI}.model.export:export",
                "Write the trained model as files that transformers loads: weights, config, tokenizer, card",
            ),
            LazyCommand(
                "verify",
                f"{CLI}.model.verify:verify",
                "Check what somebody exported against the log of a site of the run",
            ),
            LazyCommand("generate", f"{CLI}.model.generate:generate", "Continue a text with the shared model"),
            LazyCommand(
                "evaluate",
                f"{CLI}.model.evaluate:evaluate",
                "Validation loss of the shared model on the run's held-out text, or perplexity on a text of your own",
            ),
            LazyCommand(
                "data", f"{CLI}.model.data:data", "Pack text into token stores, adopt existing ones, look into them"
            ),
        ),
    ),
    HelpGroup(
        "Tools",
        (
            LazyCommand(
                "doctor",
                f"{DECLARED}.checking:doctor",
                "Check this machine, and with RUN_DIR the site on it; each finding comes with its remedy",
            ),
            LazyCommand(
                "check-config",
                f"{DECLARED}.checking:check_config",
                "Check run.toml, site.toml or a run directory without starting anything",
            ),
            LazyCommand(
                "config",
                f"{DECLARED}.config:config",
                "Show what holds at a site and where each value comes from, or change its site.toml",
            ),
            LazyCommand(
                "plan", f"{DECLARED}.planning:plan", "Predict exchange, rounds, bytes, memory and loss of a run"
            ),
            LazyCommand("id", f"{DECLARED}.identity:show_id", "Print the peer id of a run directory"),
            LazyCommand("identity", f"{DECLARED}.identity:identity", "The key that tells who this site is"),
            LazyCommand(
                "files",
                f"{CLI}.configuration.shipped:files",
                "List, print or write what comes with dilocoxd: service units, alert rules, a Grafana dashboard",
            ),
            LazyCommand("completion", f"{CLI}.completion:completion", "Print the completion script for a shell"),
            LazyCommand(
                "replay",
                f"{DECLARED}.replay:replay",
                "Play a recorded life of the round machine again: each event, what it ordered, and what it waited for",
            ),
        ),
    ),
)
