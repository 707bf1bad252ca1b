"""Turns the two configuration files into the settings of the parts: one place, so that no part reads files itself."""

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.daemon.site_interface import SiteSettings
from dilocoxd.ids import PeerId
from dilocoxd.rounds.limits import RoundLimits
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.identity import Identity
from dilocoxd.swarm.service import SwarmSettings


def round_limits(manifest: Manifest) -> RoundLimits:
    """Bounds of the round machine; the same at all sites of a run."""
    section = manifest.round
    return RoundLimits(
        contributors_max=section.peers_max,
        tokens_max=manifest.claimed_tokens_max,
        inner_steps_max=manifest.claimed_steps_max,
        has_majority_quorum=section.quorum == "majority",
        grace_factor=section.grace_factor,
        grace_min_s=section.grace_min_s,
        grace_max_s=section.grace_max_s,
        progress_timeout_s=section.progress_timeout_s,
        site_steps_min=manifest.site_steps_min,
    )


def site_settings(run_dir: RunDir, manifest: Manifest, site: SiteConfig, peer: PeerId) -> SiteSettings:
    """What happens inside this site."""
    strategy, workers = manifest.strategy, site.workers
    threads = str(site.parallel.threads_per_rank)
    return SiteSettings(
        run_directory=run_dir.path,
        peer_id=peer,
        delay=strategy.delay,
        inner_steps=strategy.inner_steps,
        site_steps_min=manifest.site_steps_min,
        extend_steps_max=strategy.extend_steps_max if strategy.late_policy == "extend" else 0,
        evaluate_every_rounds=manifest.data.evaluate_every_rounds,
        num_stages=site.parallel.stages,
        trainer_environment={"OMP_NUM_THREADS": threads},
        outer_environment={"OMP_NUM_THREADS": str(workers.outer_threads)},
        restarts_max=workers.restarts_max,
        restart_window_s=workers.restart_window_s,
        trainer_start_timeout_s=workers.start_timeout_s,
        trainer_silence_min_s=workers.step_timeout_s,
    )


def listen_addresses(host: str, port: int) -> tuple[str, ...]:
    """Multiaddrs to listen on; `::` means all addresses of this machine, of both families."""
    if host == "::":
        return f"/ip6/::/tcp/{port}", f"/ip4/0.0.0.0/tcp/{port}"
    return (f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}",)


def swarm_settings(run_dir: RunDir, manifest: Manifest, site: SiteConfig, identity: Identity) -> SwarmSettings:
    """Our end of the network."""
    network = site.network
    return SwarmSettings(
        run_id=manifest.run_id,
        identity=identity,
        peers_json=run_dir.peers_json,
        socket_dir=run_dir.path / "p2p",
        listen=listen_addresses(network.host, network.port),
        announce=tuple(address.split("/p2p/")[0] for address in network.announce),
        bootstrap=network.bootstrap,
        relays=network.relays,
        map_port=network.nat_port_map,
        upload_bytes_per_s_max=network.upload_bytes_per_s_max,
        serve_bytes_per_s_max=network.serve_bytes_per_s_max,
        streams_per_peer=network.streams_per_peer,
    )
