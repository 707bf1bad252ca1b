"""Turns the two configuration files into the settings of the parts: one place, so that no part reads files itself."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dilocoxd.config.addresses import listen_ip, read_address
from dilocoxd.config.footprint.nodes import NO_NEEDS, node_needs
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import volumes_here
from dilocoxd.daemon.audit.auditor import AuditRules
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.daemon.workers.forked import PIPELINE_MODULE, TRAINER_MODULE
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import recalled
from dilocoxd.machines.admission.certificates import Authorities, authorities_of, check_membership
from dilocoxd.machines.limits import PayloadShape, RoundLimits
from dilocoxd.machines.reading.volumes import HeldVolumes
from dilocoxd.store.admission import ADMIT_AGAIN, read_authorities, read_membership
from dilocoxd.store.prepared import chosen_cache_dir, find_prepared
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.interface import SwarmSettings
from dilocoxd.wire.admission import decode_membership

FAMILY_MODULES: Final = ("dilocoxd.models.hf", "transformers.masking_utils", "transformers.modeling_layers")
"""What models of every family of transformers import; the library itself only does when it makes one."""


def round_limits(manifest: Manifest) -> RoundLimits:
    """Bounds of the round machine; the same at all sites of a run."""
    section = manifest.round
    return RoundLimits(
        contributors_max=section.peers_max,
        tokens_max=manifest.claimed_tokens_max,
        inner_steps_max=manifest.claimed_steps_max,
        stop_after_tokens=manifest.run.stop_after_tokens,
        has_majority_quorum=section.quorum == "majority",
        final_depth=section.final_depth,
        grace_factor=section.grace_factor,
        grace_min_s=section.grace_min_s,
        grace_max_s=section.grace_max_s,
        progress_timeout_s=section.progress_timeout_s,
        site_steps_min=manifest.site_steps_min,
    )


def payload_shape(manifest: Manifest, payloads: PayloadMaps) -> PayloadShape:
    """What the round machine knows of payloads and of what is done with them; the same at all sites of a run."""
    is_audited = manifest.reduction.verify == "before_vote"
    return PayloadShape(payloads.largest.num_passes, payloads.largest.segment_bytes, manifest.is_gathered, is_audited)


def audit_rules(manifest: Manifest) -> AuditRules:
    """How results are checked. Before a vote audits take at most half of the time that others wait for it."""
    is_before_vote = manifest.reduction.verify == "before_vote"
    wait_s = round_limits(manifest).vote_timeout_s / 2 if is_before_vote else 0.0
    return AuditRules(manifest.reduction.verify_fraction, wait_s)


def site_settings(run_dir: RunDir, manifest: Manifest, site: SiteConfig, peer: PeerId) -> SiteSettings:
    """What happens inside this site."""
    strategy, workers = manifest.strategy, site.workers
    return SiteSettings(
        run_directory=run_dir.path,
        peer_id=peer,
        delay=strategy.delay,
        inner_steps=strategy.inner_steps,
        site_steps_min=manifest.site_steps_min,
        extend_steps_max=strategy.extend_steps_max if strategy.late_policy == "extend" else 0,
        evaluate_every_rounds=manifest.data.evaluate_every_rounds,
        without_one_every=workers.without_one_every,
        volumes=HeldVolumes(peer, manifest.data.num_volumes, volumes_here(manifest, site)),
        num_stages=site.parallel.ranks,
        outer_parts=workers.outer_parts,
        node_parts=site.cluster.outer_parts,
        node_stages=site.cluster.stages,
        stage_ranks=site.parallel.in_stage,
        node_address=(site.cluster.host, site.cluster.port),
        node_grace_s=site.cluster.head_grace_s,
        node_key_file=site.cluster.key_file,
        node_needs=node_needs(manifest, site) if site.cluster.outer_parts or site.cluster.stages else NO_NEEDS,
        trainer_modules=trainer_modules(manifest, site),
        restarts_max=workers.restarts_max,
        restart_window_s=workers.restart_window_s,
        trainer_start_timeout_s=workers.start_timeout_s,
        trainer_silence_min_s=workers.step_timeout_s,
    )


def prepared_text(manifest: Manifest, site: SiteConfig) -> Callable[[], Path | None]:
    """Finds the folder of the run's text on this machine, for those who cannot make it themselves."""
    cache, data, tokenizer = chosen_cache_dir(site.paths.cache), manifest.data.sha256, manifest.tokenizer.sha256
    return lambda: find_prepared(cache, data, tokenizer)


def trainer_modules(manifest: Manifest, site: SiteConfig) -> tuple[str, ...]:
    """What the trainers run, then what else they would import after the fork, each rank again in each generation.

    Empty: the trainer is somebody's own loop, which comes by itself.
    """
    if manifest.model.kind == "external":
        return ()
    family = () if manifest.model.kind in ("native", "python") else FAMILY_MODULES
    pipeline = () if site.parallel.pipeline == 1 else (PIPELINE_MODULE,)
    shards = () if site.parallel.readers == 1 else ("torch.distributed.fsdp",)
    matrices = () if site.parallel.tensor == 1 else ("torch.distributed.tensor.parallel",)
    return (TRAINER_MODULE, *family, *pipeline, *shards, *matrices)


def listen_addresses(host: str, port: int) -> tuple[str, ...]:
    """Multiaddrs to listen on; `::` means all addresses of this machine, of both families. Raises ConfigError."""
    if host == "::":
        return f"/ip6/::/tcp/{port}", f"/ip4/0.0.0.0/tcp/{port}"
    return (read_address(listen_ip(host)).multiaddr(port),)


def allowed_peers(manifest: Manifest, site: SiteConfig) -> frozenset[PeerId] | None:
    """Who may talk to us at all; None: everybody. A closed run has nobody but this list."""
    listed = frozenset(map(PeerId, site.network.peers_allowed))
    return listed if listed or manifest.admission.mode == "closed" else None


def run_authorities(manifest: Manifest) -> Authorities | None:
    """Who admits sites; None: the run asks for no membership."""
    section = manifest.admission
    if section.mode != "invite":
        return None
    return authorities_of(manifest.sha256(), section.authorities, section.threshold)


def membership_of(run_dir: RunDir, manifest: Manifest, peer: PeerId) -> bytes:
    """Our encoded membership; empty where the run asks for none. Raises ConfigError without one that is ours."""
    first = run_authorities(manifest)
    if first is None:
        return b""
    data = read_membership(run_dir.membership)
    if not data and first.threshold > 1:
        place = shlex.quote(str(run_dir.path))
        raise ConfigError(
            f"{run_dir.path}: this site is no member of the run, and {first.threshold} of {len(first.keys)} authorities"
            f" decide who is; bring as many keys with `dilocoxd authority import {place} FILE`, or one: then"
            f" `dilocoxd invite {place}` writes what others sign, and the link that comes of it is for this site, too"
            f" (`dilocoxd join LINK --dir {place}`)"
        )
    if not data:
        raise ConfigError(
            f"{run_dir.path}: this site is no member of the run; join it with a link that `dilocoxd invite` makes at a"
            " site that has an authority's key. Its founder gives that key with `dilocoxd authority import`; if its"
            " run.toml is a copy of another run's, found it anew with --set admission.authorities=[]"
        )
    try:
        proof = decode_membership(data)
        known = recalled(first, read_authorities(run_dir.members_json)[0], lambda voter, signature, text: True)
        check_membership(proof, peer, known.list_of(proof.certificate.terms.authorities) or first)
    except WireError as error:
        raise ConfigError(f"{run_dir.membership}: {error.detail}; {ADMIT_AGAIN}") from error
    return data


def swarm_settings(run_dir: RunDir, manifest: Manifest, site: SiteConfig, identity: Identity) -> SwarmSettings:
    """Our end of the network."""
    network = site.network
    return SwarmSettings(
        run_id=manifest.run_id,
        identity=identity,
        peers_json=run_dir.peers_json,
        socket_dir=run_dir.path / "p2p",
        log_path=run_dir.logs / "p2pd.log",
        listen=listen_addresses(network.host, network.port),
        announce=network.announced,
        bootstrap=network.bootstrap,
        relays=network.relays,
        relay_for_others=network.relay_for_others,
        name=site.site.shown,
        map_port=network.nat_port_map,
        hole_punching=network.hole_punching,
        upload_bytes_per_s_max=network.upload_bytes_per_s_max,
        serve_bytes_per_s_max=network.serve_bytes_per_s_max,
        streams_per_peer=network.streams_per_peer,
        data_port=network.data_port,
        data_connections=network.data_connections,
        allowed_peers=allowed_peers(manifest, site),
        authorities=run_authorities(manifest),
        membership=membership_of(run_dir, manifest, identity.peer_id),
        members_json=run_dir.members_json,
    )
