"""`dilocoxd invite | members | evict`: who may join a run, and who did. Who decides it: authority.py."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.members import Member
from dilocoxd.answers.site import CommandDone
from dilocoxd.answers.status import Status
from dilocoxd.cli.client import client_for
from dilocoxd.cli.overrides import warn_of_address
from dilocoxd.cli.run_dir.admission import (
    Keyring,
    join_link,
    keyring,
    now_ms,
)
from dilocoxd.cli.run_dir.requests import load_request, new_request
from dilocoxd.cli.screens.layout import Column, table, width
from dilocoxd.cli.show import show_json
from dilocoxd.config.addresses import leads_here
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.errors import ConfigError, PeerError, WireError
from dilocoxd.machines.admission.certificates import check_certificate, check_revocation
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.store.admission import read_secret, write_secret
from dilocoxd.store.rundir import RunDir, open_run_dir
from dilocoxd.wire.admission import InviteTerms, Revocation, RevocationTerms
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.join_link import InviteToken

UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
EXPIRES_S_MAX: Final = 3650 * 86_400


def seconds_of(text: str) -> int:
    """`7d`, `12h` or `30m`. Raises ConfigError."""
    found_text = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    seconds = int(found_text[1]) * UNITS[found_text[2]] if found_text else 0
    if not 0 < seconds <= EXPIRES_S_MAX:
        raise ConfigError(f"--expires {text!r} cannot be used; write it as 30m, 12h or 7d, at most ten years")
    return seconds


def invited_run(run_directory: Path) -> tuple[RunDir, Manifest, Keyring]:
    """A run directory whose run admits by invite. Raises ConfigError."""
    run_dir = open_run_dir(run_directory)
    manifest = load_manifest(run_dir.run_toml)
    if manifest.admission.mode != "invite":
        place = shlex.quote(str(run_directory))
        raise ConfigError(
            f"{run_directory}: this run is {manifest.admission.mode}, it has no invites and no authorities;"
            " give others the line that `dilocoxd start` prints, and to keep a site out, list the others at each site:"
            f" `dilocoxd config set {place} 'network.peers_allowed=[...]'`, with ids as `dilocoxd id` prints them"
        )
    return run_dir, manifest, keyring(run_dir, manifest)


def invite(run_directory: Path, expires: str, uses: int, role: str, signed: Path | None) -> int:
    """Exit code of `dilocoxd invite` (cli/declared/members.py). Raises ConfigError."""
    run_dir, manifest, ring = invited_run(run_directory)
    if signed is not None:
        show_link(run_dir, manifest, _signed_token(run_dir, ring, signed))
        return 0
    if not ring.keys and read_secret(run_dir.authority_key):
        keys = ", ".join(key.hex()[:16] for key in ring.authorities.keys)
        raise ConfigError(
            f"{run_dir.authority_key}: holds keys of authorities that were replaced; bring one of those that decide now"
            f" (list {ring.authorities.number}: {keys}) with `dilocoxd authority import`"
        )
    if not ring.keys:
        raise ConfigError(
            f"{run_dir.authority_key}: this site has no authority's key, so it cannot invite; ask the run's founder, or"
            " bring the key with `dilocoxd authority import`; if it was lost, members vote for a new one:"
            " `dilocoxd authority vote --help`"
        )
    token = ring.invite(now_ms() + seconds_of(expires) * 1000, uses, role)
    if ring.is_enough:
        show_link(run_dir, manifest, token)
        return 0
    key = SigningKey(token.seed)
    terms = token.certificate(manifest.sha256(), key.public).terms
    write_secret(_seed_file(run_dir, token.serial), token.seed.hex())
    path = Path(f"invite-{token.serial:x}.json")
    new_request("invite", terms, ring).save(path)
    click.echo(f"{len(ring.keys)} of {ring.authorities.threshold} authorities have signed {path}")
    click.echo(f"have the others run: dilocoxd authority sign {path} KEY_FILE")
    click.echo(f"then:                dilocoxd invite {shlex.quote(str(run_directory))} --signed {path}")
    return 0


def _seed_file(run_dir: RunDir, serial: int) -> Path:
    return run_dir.path / f"invite-{serial:x}.key"


def _signed_token(run_dir: RunDir, ring: Keyring, path: Path) -> InviteToken:
    request = load_request(path)
    terms = request.terms
    if not isinstance(terms, InviteTerms):
        raise ConfigError(
            f"{path}: is no invite, but another request to sign; give the file that `dilocoxd invite` wrote"
        )
    seed = read_secret(_seed_file(run_dir, terms.serial))
    if not seed:
        raise ConfigError(f"{path}: this invite was not begun here; use the run directory where it was")
    token = InviteToken(
        bytes.fromhex(seed),
        terms.serial,
        terms.not_after_ms,
        terms.uses,
        terms.role,
        b"" if terms.authorities == terms.run else terms.authorities,
        request.signatures,
    )
    try:
        check_certificate(token.certificate(terms.run, terms.invite_key), ring.authorities)
    except WireError as error:
        raise ConfigError(
            f"{path}: {error.detail}; have it signed with `dilocoxd authority sign`, or make another"
        ) from error
    return token


def show_link(run_dir: RunDir, manifest: Manifest, token: InviteToken) -> None:
    """Print the command to paste."""
    from dilocoxd.config.site import load_site
    from dilocoxd.swarm.discovery.identity import load

    site = load_site(run_dir.site_toml)
    peer = load(run_dir.identity(site)).peer_id
    link = replace(join_link(run_dir, manifest, site, peer), invite=token)
    network = site.network
    if not (network.announce or network.relays) and (outside := _ask_outside(run_dir, is_mapped=network.nat_port_map)):
        link = replace(link, address=f"{outside}/p2p/{peer}")
    warn_of_address(link.address)
    click.echo(f"dilocoxd join {link.to_text()}")


def _ask_outside(run_dir: RunDir, *, is_mapped: bool) -> str:
    try:
        status = client_for(str(run_dir.path)).ask("/v1/status", Status)
    except (PeerError, ConfigError):  # no daemon, or one without an API
        return ""
    return outside_address(status, is_mapped=is_mapped)


def outside_address(status: Status, *, is_mapped: bool) -> str:
    """A public address of the site without /p2p/; empty: its daemon knows none.

    Peers of two networks reached the site there, or, with `is_mapped` (network.nat_port_map), the router opened it.
    """
    confirmed = [one.address for one in status.public_addresses if one.is_announced]
    opened = [one.partition("/p2p/")[0] for one in status.addresses if is_mapped and leads_here(one)]
    return next(iter((*confirmed, *opened)), "")


def members(target: str | None, is_wide: bool, as_json: bool) -> int:
    """Exit code of `dilocoxd members` (cli/declared/members.py). Raises ConfigError."""
    if as_json:
        return show_json(target, "/v1/members")
    rows = client_for(target).ask("/v1/members", list[Member])
    columns = [
        Column("site", [row.name for row in rows]),
        Column("state", [row.state for row in rows]),
        Column("role", [row.role or "-" for row in rows], 1),
        Column("invite", [row.serial for row in rows], 2),
        Column("uses", ["-" if row.uses is None else str(row.uses) for row in rows], 3, is_number=True),
        Column("invite is", [row.invite_state or "-" for row in rows], 4),
        Column("eviction votes", [_votes_shown(row) for row in rows], 2),
        Column("left out", ["-" if row.left_out_until is None else f"to {row.left_out_until}" for row in rows], 5),
        Column("peer id", [row.peer_id for row in rows], 6),
    ]
    click.echo(table(columns, width(is_wide=is_wide)) if rows else without_members(target))
    for one in client_for(target).ask("/v1/authorities", list[AuthorityList]):
        if one.state == "in force":
            keys = ", ".join(key[:16] for key in one.keys)
            click.echo(f"authorities: list {one.number}, {one.threshold} of {keys} decide")
    return 0


def without_members(target: str | None) -> str:
    """What stands in the place of members, or of authorities, where a run has none. Raises PeerError."""
    if client_for(target).ask("/v1/status", Status).admission == "closed":
        return (
            "this run is closed: it has neither members nor authorities, each site lets in those that its site.toml"
            " lists (network.peers_allowed); `dilocoxd peers` shows who is here"
        )
    return (
        "this run is open: it has neither members nor authorities, whoever finds it takes part; `dilocoxd peers` shows"
        " who is here, and who is on probation"
    )


def _votes_shown(row: Member) -> str:
    return f"{row.eviction_votes} of {row.eviction_votes_needed} needed" if row.eviction_votes else "-"


def member_called(site: str, rows: Sequence[Member], own: str) -> Member:
    """The one of `rows` to evict, by name or peer id. Raises ConfigError, also if it is `own`."""
    found_rows = [row for row in rows if site in (row.peer_id, row.name)]
    if not found_rows:
        raise ConfigError(f"no member is called {site!r}; give one of {', '.join(row.name for row in rows)}")
    if len(found_rows) > 1:
        ids = ", ".join(row.peer_id for row in found_rows)
        raise ConfigError(f"{len(found_rows)} members are called {site!r}; give the peer id of one of them: {ids}")
    if found_rows[0].peer_id == own:
        raise ConfigError(f"{site} is this site itself; run `dilocoxd leave`, which ends its part in the run")
    return found_rows[0]


def evict(site: str, run_directory: Path, signed: Path | None, vote: bool) -> int:
    """Exit code of `dilocoxd evict` (cli/declared/members.py). Raises ConfigError."""
    if vote and signed is not None:
        raise ConfigError("--vote and --signed exclude each other: members vote, authorities sign; give one of them")
    _, manifest, ring = invited_run(run_directory)
    client = client_for(str(run_directory))
    rows = [row for row in client.ask("/v1/members", list[Member]) if row.state == "member"]
    row = member_called(site, rows, client.ask("/v1/status", Status).peer_id)
    if vote or (signed is None and not ring.keys):
        click.echo(client.ask("/v1/control/vote-eviction", CommandDone, {"peer_id": row.peer_id}).text)
        return 0
    terms = RevocationTerms(manifest.sha256(), row.peer_id, int(row.serial, 16))  # type: ignore[arg-type]
    path = Path(f"evict-{terms.peer[-8:]}.json")
    request = new_request("evict", terms, ring) if signed is None else load_request(signed)
    if signed is None and not ring.is_enough:
        request = request.joined(path)
    if request.terms != terms:
        raise ConfigError(f"{signed}: is no eviction of {site}; give the file that `dilocoxd evict {site}` wrote")
    revocation = Revocation(terms, request.signatures, ())
    try:
        check_revocation(revocation, (ring.authorities,))
    except WireError as error:
        if signed is not None:
            raise ConfigError(
                f"{signed}: {error.detail}; have it signed with `dilocoxd authority sign`, or leave --signed out"
                " where enough keys are"
            ) from error
        request.save(path)
        click.echo(f"{len(request.signatures)} of {ring.authorities.threshold} authorities have signed {path}")
        click.echo(f"have the others run: dilocoxd authority sign {path} KEY_FILE")
        click.echo(
            f"then:                dilocoxd evict {shlex.quote(site)} {shlex.quote(str(run_directory))} --signed {path}"
        )
        return 0
    body = {"revocation": encode_struct(revocation).hex()}
    click.echo(client.ask("/v1/control/evict", CommandDone, body).text)
    return 0
