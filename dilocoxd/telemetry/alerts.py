"""Every alert there is, defined once: what it means, why it happens, what to do, and when Prometheus tells it.

/v1/alerts, the runbook (docs/operations/runbook.md) and the alert rules (dilocoxd/shipped/monitoring/alerts.yml) are
made from this table. The daemon raises alerts by `AlertRaised` events under these codes; watches over the status are in
daemon/observe/alert_rules.py.
"""

from typing import Final

from dilocoxd.telemetry.alert_kind import AlertKind
from dilocoxd.telemetry.catalogue import AlertRaised

KINDS: Final[tuple[AlertKind, ...]] = (
    AlertKind(
        "daemon_down", "critical",
        "Prometheus cannot reach the daemon.",
        "The scrape of /metrics fails.",
        "The daemon has stopped, the machine is off, or api.host and api.port are not what Prometheus was told.",
        "Run `dilocoxd status` on the machine; if nothing answers, read the journal and start the service again.",
        for_s=120, expr='up{job="dilocoxd"} == 0',
    ),
    AlertKind(
        "start_failed", "critical",
        "The daemon could not start all its parts and is leaving.",
        "A part failed during the start; goes with the next start.",
        "The outer worker cannot load the model or the state, or p2pd cannot listen.",
        "Read the text of the alert and logs/ of the run directory, correct that, start the daemon again.",
    ),
    AlertKind(
        "site_failed", "critical",
        "The outer worker or the trainers of this site cannot be kept running; the site is leaving.",
        "The restart budget (workers.restarts_max) is spent, or a node lost its memory; goes with the next start.",
        "Usually a lack of memory, a broken GPU or driver, or training text that cannot be read; of a node, that it was"
        " started anew.",
        "If the text names a node: start the daemon again, as its service does. Otherwise read logs/trainer-*.log and"
        " logs/outer.log of the run directory; run `dilocoxd doctor`; start it again.",
    ),
    AlertKind(
        "network_failed", "critical",
        "The network part has failed for good; the site is leaving.",
        "p2pd could not be started again within its budget; goes with the next start.",
        "The port network.port is taken, or the p2pd program was removed or killed again and again.",
        "Run `dilocoxd doctor`; free the port or choose another one in site.toml; start the daemon again.",
    ),
    AlertKind(
        "recovery_failed", "critical",
        "Catching up with the others failed because of this site's own disk or worker; the site is leaving.",
        "Applying or storing fetched entries failed; goes with the next start.",
        "Disk full, disk failing, or the outer worker out of memory.",
        "Run `dilocoxd doctor` and `dilocoxd log verify RUN_DIR`; free space or memory; start the daemon again.",
    ),
    AlertKind(
        "rounds_failed", "critical",
        "This site can no longer keep its promises to the others, because its disk refuses writes; it is leaving.",
        "Writing an entry, a vote or a promise failed; goes with the next start.",
        "The disk with the run directory is full or failing.",
        "Make room on the disk, then start the daemon again; it catches up by itself.",
    ),
    AlertKind(
        "alerts_failed", "critical",
        "The part that watches for alerts has failed; the site is leaving.",
        "The watch ended with an error; goes with the next start.",
        "The run directory cannot be read any more.",
        "Check the disk of the run directory; start the daemon again.",
    ),
    AlertKind(
        "worker_fork_server_lost", "warning",
        "The fork server died, and with it the outer worker and the trainers; all are being started again.",
        "The process ended or did not answer; goes when the next one has loaded its modules.",
        "Killed for memory or by somebody; or a library that it loads is broken.",
        "Nothing, if it happens once. Otherwise read logs/fork-server.log.",
        for_s=120,
    ),
    AlertKind(
        "worker_outer_lost", "warning",
        "The outer worker died and is being started again. The shared state is safe in the daemon's buffers.",
        "The process ended or went silent, or the connection to its node did; goes when the next one runs.",
        "Killed for memory (look for oom-kill in the kernel log), or by somebody; the network to a node.",
        "Nothing, if it happens once. If again and again: more memory, or a smaller model per site.",
        for_s=120,
    ),
    AlertKind(
        "node_missing", "critical",
        "A part of the outer worker, or a pipeline stage, has no machine to run on: rounds of this site wait for the"
        " part and training goes on, or training waits for the stage.",
        "No node took it for 5 s, or the node of a stage has been silent for 5 s; goes when one has it. Told again when"
        " what is missed changes.",
        "The node is off, its service ended, its cable was cut, cluster.port of the head is closed to it, its key is"
        " another one, or the head has another address than before.",
        "Mend the network to the machine that the text names: trainers there go on where they were within"
        " cluster.head_grace_s. Or start `dilocoxd node` there, or on another one, with --parts or --stages. If the"
        " text tells of a refused connection: copy cluster.key_file to it again, install this version there, or do"
        " what it says. If it tells of cluster.host: the head's address has changed.",
        for_s=60,
    ),
    AlertKind(
        "node_left_alone", "warning",
        "A node of this site answers nothing of what it is to run, or its disk is full. That counts as no restart: what"
        " it ran goes to another node with room, or waits for it.",
        "It was given a part or a stage and failed; goes a minute after it was tried again and did not. It is tried"
        " after 10 s, then after pauses that double to 2 minutes, and at once when it was started again.",
        "Its disk is full, its process is stopped or hangs, or something on the way holds back what it sends.",
        "Free space at the path that the text names; it is tried again by itself. If it answers nothing, end"
        " `dilocoxd node` there and start it again, or start one on another machine.",
        for_s=60,
    ),
    AlertKind(
        "worker_trainer_lost", "warning",
        "The trainers died and are being started again from the newest anchor; their phase is lost.",
        "A trainer process ended or went silent; goes when the next generation runs.",
        "CUDA error, lack of memory, a NaN guard, or silence beyond workers.step_timeout_s.",
        "Read the newest logs/trainer-*.log. If it is out of memory: more parallel.pipeline, shard or microbatches. If"
        " it was silent, the text names a folder of logs/hangs with the stacks and collectives of each rank; the one"
        " that is not in the collective of the others is the cause.",
        for_s=300,
    ),
    AlertKind(
        "worker_p2pd_lost", "warning",
        "p2pd, the process that carries all traffic to other sites, died or hung and is being started again.",
        "p2pd is not running; goes when it runs again. One that answers nothing for 30 s is killed first.",
        "Killed for memory or by somebody; stopped (SIGSTOP); or its port is taken by another program.",
        "Nothing, if it happens once. Otherwise read logs/p2pd.log and run `dilocoxd doctor`.",
        for_s=120,
    ),
    AlertKind(
        "snapshot_failed", "warning",
        "A snapshot could not be written. Training goes on; a restart would replay a longer piece of the log.",
        "Writing failed; goes when one is written.",
        "The disk is full, or the outer worker died meanwhile.",
        "Free space in the run directory; then `dilocoxd snapshot` writes one at once.",
    ),
    AlertKind(
        "snapshot_unusable", "info",
        "A snapshot on disk was damaged and not used; the state came from an older one and the log, or what differs is"
        " fetched from other sites.",
        "Found at the start; goes when the next snapshot is written.",
        "Power loss while writing, or a failing disk.",
        "Nothing. If it comes back, check the disk (`smartctl -a`).",
    ),
    AlertKind(
        "digest_mismatch", "critical",
        "A peer with the same chain has other bits of the model.",
        "Heads are equal and digests are not; goes after ten minutes without.",
        "A memory error, a damaged file, or a different build of torch at one of the sites.",
        "The site in the minority rebuilds itself. If it comes back, compare `dilocoxd doctor` of both sites and test"
        " the memory.",
    ),
    AlertKind(
        "identity_twice", "critical",
        "Another daemon uses this site's identity key.",
        "Others hold newer records of this identity than we wrote; goes after ten minutes without.",
        "A run directory was copied together with identity.key.",
        "Stop one of the two daemons, run `dilocoxd identity new RUN_DIR` there, and start it again.",
    ),
    AlertKind(
        "rival_authorities", "critical",
        "Two different changes of the run's authorities were signed with the same number.",
        "A change came beside one that is in force; goes after a day.",
        "Somebody has stolen the keys of authorities and signs with them, or authorities signed twice by mistake.",
        "Ask the authorities which one is theirs (`dilocoxd authority show RUN_DIR`); let members vote for it, which"
        " beats every signature (docs/operations/admission.md).",
    ),
    AlertKind(
        "authorities_changed", "warning",
        "Other authorities decide now who may join the run.",
        "Their list is in force since less than a day.",
        "The authorities before them have signed it, or two thirds of the members voted for it.",
        "Nothing, if you know of it. If not, ask the authorities before: with a stolen key a thief does the same; then"
        " let members vote (docs/operations/admission.md).",
    ),
    AlertKind(
        "peers_json", "warning",
        "The list of known peers could not be written; after a restart only network.bootstrap is known.",
        "Writing peers.json failed; goes after ten minutes without.",
        "The disk is full, or the run directory belongs to another user.",
        "Free some disk space; check the owner of the run directory.",
    ),
    AlertKind(
        "stop_list", "info",
        "Something took too long or failed while the daemon stopped.",
        "Told while stopping; goes with the next start.",
        "A worker was busy with a long step, or a disk is slow.",
        "Nothing is lost: what was not written is caught up at the next start.",
    ),
    AlertKind(
        "evicted", "critical",
        "This site is no member of the run any more. It has halted, and adds nothing to the model.",
        "Its membership was revoked, by authorities or by votes of members, and the revocation was checked here;"
        " goes with a fresh invite.",
        "Somebody decided so: ask who, and why. The text says who has shown the revocation.",
        "Ask an authority for a new invite, stop the daemon, then `dilocoxd join LINK --dir RUN_DIR` with this run"
        " directory (docs/operations/admission.md).",
    ),
    AlertKind(
        "alone", "warning",
        "No other site answers. Training goes on alone, and what is learnt counts once the others are back.",
        "Peers are known but none has answered for two minutes; goes with the first answer.",
        "This site's network is down, a firewall closed the port, or all other sites stopped.",
        "Run `dilocoxd doctor`; ask the others for `dilocoxd status`; check network.announce and the firewall.",
        for_s=60,
    ),
    AlertKind(
        "round_stalled", "critical",
        "No round has been committed for much longer than usual.",
        "Longer than 5 usual rounds and at least 10 minutes since the newest entry while training; goes with the next"
        " entry.",
        "A site holds up the others, a link is too slow for the payload, or the quorum setting waits for absent sites.",
        "`dilocoxd status` says what is waited for; `dilocoxd rounds` shows the reasons of failed attempts.",
    ),
    AlertKind(
        "left_out", "warning",
        "The last rounds were committed without this site's work. Nothing is lost: it stays in the error feedback.",
        "Five rounds in a row that had a place for us (probation) without us, while training; goes with the next one.",
        "This site is much slower than the others, or its uploads do not arrive in time.",
        "Compare step times and link speeds in `dilocoxd peers`. A faster link helps, a smaller"
        " parallel.batch_sequences where the run allows one (inner.batch_sequences_max), and fewer inner steps in the"
        " next run.",
    ),
    AlertKind(
        "behind", "warning",
        "Other sites are further than this one and it does not catch up.",
        "A live peer has been at least 3 outer steps ahead for two minutes; goes when the distance is smaller.",
        "Payloads cannot be fetched fast enough, or applying them is slower than the rounds.",
        "`dilocoxd status` says what recovery waits for; check the link and the CPU of the outer worker.",
        for_s=120,
    ),
    AlertKind(
        "trainer_idle", "warning",
        "The trainers spend much of their time waiting for the daemon instead of training.",
        "More than 10% of the last ten minutes; goes below 5%. Not for a site on its own with rounds of less than a"
        " minute: only longer phases would help it.",
        "Rounds take longer than a phase with its extensions, by the exchange or by work here, as the text says; or the"
        " machine is overloaded.",
        "Raise strategy.inner_steps in the next run. Where the exchange takes the time, use a coarser codec or a faster"
        " link; where work here does, more processors or workers.outer_parts. See `dilocoxd rounds`.",
    ),
    AlertKind(
        "stages_uneven", "info",
        "The stages of this site's pipeline are not equally fast; with other layers in each, a step would take less.",
        "Another cut would save more than 10% of a step for a minute, by what each stage computes; goes below 5%.",
        "Devices that are not equally fast, or a head or embedding that takes longer than its arithmetic says.",
        "Put the line of the text into [parallel] of site.toml and start the daemon again, if the stage that gets more"
        " layers has the memory for them. With parallel.measured_cut = true only start it again.",
    ),
    AlertKind(
        "attempts_failing", "warning",
        "Attempts at rounds fail again and again.",
        "At least 5 failed attempts in the current round; goes with the next entry.",
        "A link breaks under load, or a site vanishes during exchanges.",
        "`dilocoxd rounds` names the reasons and the peers; stop or repair that site.",
    ),
    AlertKind(
        "bad_input", "warning",
        "A peer keeps sending data that breaks the protocol. It is refused; training is not affected.",
        "More than 20 bad inputs of one peer within ten minutes; goes after ten minutes without. Knocks of those who"
        " are kept out do not count.",
        "Another version of dilocoxd, a broken machine, a clock that is off (clock_skew), or somebody who means harm.",
        "Compare versions and, with `dilocoxd doctor`, clocks; look at `bad_input` in `dilocoxd status --json`;"
        " `dilocoxd peers disconnect SITE`, and leave it out of network.peers_allowed.",
    ),
    AlertKind(
        "outsized_contribution", "critical",
        "A site sends contributions many times larger than those of the others. They are clipped.",
        "A contribution to an entry had at least 10 times the median norm; goes after ten minutes without.",
        "A broken or malicious site, its own learning rate, or one that brings back the work of many phases at once.",
        "Ask its operator what it runs; if it goes on, keep that site out. Do not lower inner.lr for it.",
    ),
    AlertKind(
        "contrary_contribution", "warning",
        "A site's contributions point away from those of all others.",
        "In two of its rounds one after the other, half of its segments or more were left out, or whoever reduces saw a"
        " cosine below -0.2; goes after ten minutes.",
        "A broken or malicious site, wrong training text, or one that is very far behind.",
        "Ask its operator what it runs and on which text; if it goes on, `dilocoxd evict` it: steps are smaller while"
        " it takes part.",
    ),
    AlertKind(
        "harmful_contribution", "warning",
        "A site's contributions make the model worse on held-out text; those of the others make it better.",
        "Three looks in a row (workers.without_one_every) found the loss higher with it than without it; a day long.",
        "A malicious site whose contributions look like those of others, a broken one, or text of another kind.",
        "Ask its operator what it runs and on which text, and other sites whether they see it; or `dilocoxd evict` it.",
    ),
    AlertKind(
        "false_result", "critical",
        "The owner of a segment returned a sum that does not follow from the contributions.",
        "This site summed a segment again (reduction.verify), or what another site showed of one, and the result is"
        " false; goes with the next start.",
        "A malicious site, or one whose memory or build computes wrongly.",
        "Sites that find it take the entry back (event entry.taken_back) and vote to evict its owner; the alert says"
        " what this site could do. `dilocoxd log evidence RUN_DIR` sums it again. Where votes are too few:"
        " `dilocoxd evict SITE`, or take it from network.peers_allowed.",
    ),
    AlertKind(
        "double_vote", "critical",
        "A site voted for two different entries in one attempt of a round. Its work is left out for 64 rounds.",
        "Two votes that contradict each other, both signed by that site, were seen here or shown by another site; goes"
        " with the next start.",
        "A malicious site, one identity that runs twice, or a disk that was put back to an earlier state.",
        "Ask its operator whether its run directory was copied, or restored from a backup: then it needs a new identity"
        " (`dilocoxd identity new RUN_DIR`). Else keep it out:"
        " `dilocoxd evict SITE`, or take it from network.peers_allowed.",
    ),
    AlertKind(
        "state_spoiled", "critical",
        "Nothing can be trained from the shared state: an entry made the loss not finite.",
        "The first inner steps from a shared state have no finite loss or gradient here; goes with the first finite"
        " step from a newer one.",
        "A contribution that spoiled the model, bits that rotted, or outer.lr; if only this site says so, its GPU. Not"
        " inner.lr: no step had been made.",
        "When more than half of the sites say so they take the entry back by themselves, up to 3 times in 64 rounds"
        " (event entry.taken_back). If the alert stays, keep out the site that an alert names (`dilocoxd evict SITE`)"
        " and go on in a new run from the state before: `dilocoxd start --from RUN_DIR@ROUND`, with"
        " aggregation.norm_clip on. Lower inner.lr only if it happens again with all sites honest.",
    ),
    AlertKind(
        "fork_below_final", "critical",
        "The run has two branches, and neither is left by itself: entries of this site that are final are not in the"
        " heavier one.",
        "A sound branch with more tokens lacks entries that are final here (round.final_depth); goes when this site has"
        " adopted a branch, or after ten minutes without.",
        "A split that lasted longer than round.final_depth entries, a site that was put back to an old state, or"
        " somebody who forged a history.",
        "Ask the other operators which branch is the run's; both go on meanwhile. On every site that stands on the"
        " other one: `dilocoxd adopt HEAD`, or `dilocoxd adopt SITE` with a site that stands on the right one.",
    ),
    AlertKind(
        "loss_not_finite", "critical",
        "The training loss is not a number.",
        "The newest inner loss is NaN or infinite; goes when it is a number again.",
        "The learning rate is too high, the GPU computes wrongly, or a site spoils the model (outsized_contribution).",
        "If another alert names a site, that is the cause. Else lower inner.lr in a new run; test the GPU."
        " Contributions of such phases are refused by themselves.",
    ),
    AlertKind(
        "loss_spike", "warning",
        "The training loss of this site has jumped far above what it usually is.",
        "Five inner steps in a row above the median of the 128 before by six times its usual spread and by 5%, and"
        " above all but one in twenty of them; goes after 20 steps in a row that are not, or when it has stood for"
        " 1,000 steps and is the new level.",
        "The learning rate is too high or hardly clipped; other text than before; a site that spoils the model; a GPU"
        " that computes wrongly.",
        "The text says where it began. At the first steps of a phase: the outer step brought it; `dilocoxd rounds` says"
        " who contributed, and if another alert names a site, `dilocoxd evict` it. Within a phase: it is this site's"
        " own text, learning rate or GPU; compare `dilocoxd status` of the others. If the validation loss stays high"
        " too, start a new run from an export of an earlier round (`dilocoxd export --round`) with a lower inner.lr or"
        " inner.clip_norm.",
    ),
    AlertKind(
        "disk_low", "critical",
        "The disk with the run directory is nearly full.",
        "Less than 5% or less than 2 GB or less than two snapshots are free; goes above.",
        "Snapshots, the log of entries, or other programs.",
        "Free space, or move the run directory to a larger disk.",
    ),
    AlertKind(
        "loop_blocked", "warning",
        "The daemon does not get enough CPU, or something blocks it.",
        "Its loop came back at least one second late within the last five minutes.",
        "More busy processes than cores, swapping, a frozen virtual machine, or a very slow disk.",
        "Leave the daemon a core: fewer parallel.threads_per_rank; check swap and disk. If the text names a call,"
        " report it.",
    ),
    AlertKind(
        "no_relay", "warning",
        "A relay of network.relays gives us no place: other sites that can only call out do not reach us through it.",
        "Ten attempts in a row failed; goes with the next start.",
        "The relay is down, its address or identity has changed, or its operator has not set network.relay_for_others.",
        "Ask its operator, or name another site that can be reached in network.relays, and start the daemon again.",
    ),
    AlertKind(
        "api_exposed", "info",
        "The HTTP API listens beyond this machine without protection.",
        "Found at the start from api.host; goes when the configuration is changed.",
        "api.host is not a loopback address, and reading needs no token or there is no TLS.",
        "Set api.host = '127.0.0.1', or api.read_needs_token = true with api.tls_certificate and api.tls_key.",
    ),
    AlertKind(
        "sink_dropping", "info",
        "A metrics sink (TensorBoard or W&B) does not keep up; values are dropped. Training is not affected.",
        "Values were dropped within the last five minutes.",
        "A slow disk or an unreachable W&B server.",
        "Check that place, or switch the sink off in site.toml.",
    ),
)  # fmt: skip

BY_CODE: Final = {kind.code: kind for kind in KINDS}

CLEARED_BY: Final = {"snapshot.written": ("snapshot_failed", "snapshot_unusable"), "state.trained": ("state_spoiled",)}
"""Events after which alerts no longer stand."""


def kind_of(code: str) -> AlertKind:
    """The kind behind a code. Raises KeyError for an unknown one."""
    return BY_CODE[code]


def raised(code: str, text: str) -> AlertRaised:
    """The event that raises an alert, with the remedy of the table. Raises KeyError for an unknown code."""
    return AlertRaised(code=code, text=text, remedy=kind_of(code).remedy)
