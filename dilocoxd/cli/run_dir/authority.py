"""`dilocoxd authority`: the keys that decide who may join a run, and how others take their place (protocol M8, M9)."""

import re
import secrets
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.site import CommandDone
from dilocoxd.answers.status import Status
from dilocoxd.cli.client import client_for
from dilocoxd.cli.run_dir.admission import found, read_keys
from dilocoxd.cli.run_dir.members import invited_run, without_members
from dilocoxd.cli.run_dir.requests import load_request, new_request
from dilocoxd.cli.screens.layout import Column, table
from dilocoxd.cli.shell.telling import tell
from dilocoxd.cli.show import show_json
from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError
from dilocoxd.machines.admission.keys import KEY_BYTES, SigningKey
from dilocoxd.store.admission import read_secret, write_secret
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.admission import AUTHORITIES_MAX
from dilocoxd.wire.authorities import CHANGES_MAX, AuthorityChange, AuthorityTerms, decode_terms
from dilocoxd.wire.codec import encode_struct

SHORT: Final = 12
"""Digits of a change's hash that `show` prints."""


def new_key(file: Path) -> int:
    """Exit code of `dilocoxd authority new` (cli/declared/authority.py). Raises ConfigError."""
    key = SigningKey(secrets.token_bytes(32))
    _write_new(file, [key])
    click.echo(key.public.hex())
    return 0


def _write_new(file: Path, keys: Iterable[SigningKey]) -> None:
    if file.exists():
        raise ConfigError(f"{file} exists already; name a new file")
    _write_keys(file, keys)


def _write_keys(file: Path, keys: Iterable[SigningKey]) -> None:
    """One seed in a line, as `read_keys` reads them."""
    write_secret(file, "\n".join(key.seed.hex() for key in keys))


def export_keys(run_directory: Path, file: Path) -> int:
    """Exit code of `dilocoxd authority export` (cli/declared/authority.py). Raises ConfigError."""
    run_dir, _, ring = invited_run(run_directory)
    if not ring.keys:
        raise ConfigError(
            f"{run_dir.authority_key}: there is no authority's key here; bring one with `dilocoxd authority import`"
        )
    _write_new(file, ring.keys.values())
    click.echo(f"{len(ring.keys)} of {len(ring.authorities.keys)} keys are in {file}; keep it secret")
    return 0


def import_keys(run_directory: Path, file: Path) -> int:
    """Exit code of `dilocoxd authority import` (cli/declared/authority.py). Raises ConfigError."""
    run_dir, manifest, ring = invited_run(run_directory)
    given = read_keys(read_secret(file), str(file))
    places = {ring.authorities.place_of(key): key for key in given}
    new = {place: key for place, key in places.items() if place is not None}
    if not new:
        theirs = ", ".join(key.hex()[:16] for key in ring.authorities.keys)
        raise ConfigError(
            f"{file}: holds no key of this run's authorities (list {ring.authorities.number} is in force; their public"
            f" keys begin with {theirs}); give the file of one of them"
        )
    kept = {**ring.keys, **new}
    _write_keys(run_dir.authority_key, kept.values())
    _become_member(run_dir, manifest)
    click.echo(f"{len(kept)} of {len(ring.authorities.keys)} keys are here, {ring.authorities.threshold} decide")
    return 0


def _become_member(run_dir: RunDir, manifest: Manifest) -> None:
    from dilocoxd.config.site import load_site
    from dilocoxd.swarm.discovery.identity import load

    found(run_dir, manifest, load(run_dir.identity(load_site(run_dir.site_toml))).peer_id)


def sign_request(request_file: Path, key_file: Path, yes: bool) -> int:
    """Exit code of `dilocoxd authority sign` (cli/declared/authority.py). Raises ConfigError."""
    request, keys = load_request(request_file), read_keys(read_secret(key_file), str(key_file))
    tell(f"{request_file} asks for {request.in_words()}")
    is_asked = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    if is_asked and not click.confirm("sign this?", default=True, err=True):
        raise click.Abort
    request = request.signed_by(keys)
    request.save(request_file)
    click.echo(f"{request_file}: {request.kind}, signed by {len(request.signatures)} of {len(request.authorities)}")
    return 0


def show_lists(target: str | None, as_json: bool) -> int:
    """Exit code of `dilocoxd authority show` (cli/declared/authority.py). Raises ConfigError."""
    if as_json:
        return show_json(target, "/v1/authorities")
    rows = client_for(target).ask("/v1/authorities", list[AuthorityList])
    columns = [
        Column("list", [str(row.number) for row in rows], is_number=True),
        Column("id", [row.change[:SHORT] or "-" for row in rows]),
        Column("state", [row.state for row in rows]),
        Column("decided by", [row.decided_by or "-" for row in rows], 1),
        Column("votes", [f"{row.votes} of {row.votes_needed} needed" if row.votes else "-" for row in rows], 2),
        Column("invites", [_invites_shown(row) for row in rows], 3),
        Column("who decides", [f"{row.threshold} of {', '.join(key[:16] for key in row.keys)}" for row in rows]),
    ]
    click.echo(table(columns, None) if rows else without_members(target))
    return 0


def _invites_shown(row: AuthorityList) -> str:
    if row.state == "voted on":
        return "-"
    return "good" if row.invites_void_from is None else f"void from {row.invites_void_from}"


def rotate(
    run_directory: Path, keys: tuple[str, ...], threshold: int | None, void_invites: bool, signed: Path | None
) -> int:
    """Exit code of `dilocoxd authority rotate` (cli/declared/authority.py). Raises ConfigError."""
    _, manifest, ring = invited_run(run_directory)
    if signed is None:
        if not keys:
            raise ConfigError("name the new authorities with --key, once for each; make a key with `authority new`")
        if not ring.keys:
            raise ConfigError(
                f"{run_directory}: there is no authority's key here; bring one with `dilocoxd authority import`, or"
                " have members vote (`dilocoxd authority vote`)"
            )
        void_from = _height(run_directory) if void_invites else 0
        before = ring.authorities
        terms = _new_terms(manifest, before.number + 1, before.listed, keys, threshold, void_from)
        if terms.threshold < before.threshold:
            tell(f"warning: {terms.threshold} of the new authorities decide, {before.threshold} do now (--threshold)")
        request = new_request("authorities", terms, ring)
        if not ring.is_enough:
            request = request.joined(Path(f"authorities-{terms.number}.json"))
    else:
        if keys or threshold or void_invites:
            raise ConfigError("--signed takes the list from the file; leave --key, --threshold and --void-invites out")
        request = load_request(signed)
    if not isinstance(request.terms, AuthorityTerms):
        raise ConfigError(f"{signed}: is no change of the authorities; give a file of `dilocoxd authority rotate`")
    if not ring.authorities.is_enough(len(request.signatures)):
        path = signed or Path(f"authorities-{request.terms.number}.json")
        request.save(path)
        click.echo(f"{len(request.signatures)} of {ring.authorities.threshold} authorities have signed {path}")
        click.echo(f"have the others run: dilocoxd authority sign {shlex.quote(str(path))} KEY_FILE")
        place, file = shlex.quote(str(run_directory)), shlex.quote(str(path))
        click.echo(f"then:                dilocoxd authority rotate {place} --signed {file}")
        return 0
    change = AuthorityChange(request.terms, request.signatures, ())
    body = {"change": encode_struct(change).hex()}
    click.echo(client_for(str(run_directory)).ask("/v1/control/change-authorities", CommandDone, body).text)
    files = [shlex.quote(text) for text in keys if Path(text).exists()] or ["FILE"]
    for file in files:
        place = shlex.quote(str(run_directory))
        click.echo(f"to invite and evict with a new key here: dilocoxd authority import {place} {file}")
    return 0


def _height(run_directory: Path) -> int:
    """From which entry on earlier invites are void. Asks the daemon."""
    return max(1, client_for(str(run_directory)).ask("/v1/status", Status).height)


def vote(
    run_directory: Path,
    list_id: str | None,
    keys: tuple[str, ...],
    threshold: int | None,
    void_invites: bool,
    instead_of: int | None,
) -> int:
    """Exit code of `dilocoxd authority vote` (cli/declared/authority.py). Raises ConfigError."""
    _, manifest, _ = invited_run(run_directory)
    client = client_for(str(run_directory))
    rows = client.ask("/v1/authorities", list[AuthorityList])
    if (list_id is None) == (not keys):
        raise ConfigError(
            "nothing or two things to vote for;"
            " give either the ID of a list (`dilocoxd authority show`) or new keys with --key"
        )
    if list_id is not None:
        if threshold or void_invites or instead_of:
            raise ConfigError("an ID names the whole list; leave --threshold, --void-invites and --instead-of out")
        matching = [row for row in rows if row.change.startswith(list_id)] if list_id else []
        if len(matching) != 1:
            raise ConfigError(f"{len(matching)} lists begin with {list_id!r}; see `dilocoxd authority show`")
        terms = decode_terms(bytes.fromhex(matching[0].terms))
    else:
        before = _list_before(rows, instead_of)
        void_from = _height(run_directory) if void_invites else 0
        listed = bytes.fromhex(before.change) or manifest.sha256()
        terms = _new_terms(manifest, before.number + 1, listed, keys, threshold, void_from)
    body = {"terms": encode_struct(terms).hex()}
    click.echo(client.ask("/v1/control/vote-authorities", CommandDone, body).text)
    return 0


def _list_before(rows: list[AuthorityList], instead_of: int | None) -> AuthorityList:
    way = [row for row in rows if row.state in ("in force", "earlier")]
    wanted = max(row.number for row in way) if instead_of is None else instead_of - 1
    found_rows = [row for row in way if row.number == wanted]
    if not found_rows:
        raise ConfigError(f"--instead-of {instead_of}: there is no such list in force; see `dilocoxd authority show`")
    return found_rows[0]


def _new_terms(
    manifest: Manifest, number: int, before: bytes, keys: tuple[str, ...], threshold: int | None, void_from: int
) -> AuthorityTerms:
    public = tuple(dict.fromkeys(key for text in keys for key in _public_keys(text)))
    if len(public) > AUTHORITIES_MAX:
        raise ConfigError(f"{len(public)} keys are given; name at most {AUTHORITIES_MAX}")
    if threshold is not None and threshold > len(public):
        raise ConfigError(f"--threshold {threshold}, but only {len(public)} keys are given; lower it, or name more")
    if number > CHANGES_MAX:
        raise ConfigError(f"the authorities have changed {CHANGES_MAX} times; vote with --instead-of an earlier list")
    return AuthorityTerms(manifest.sha256(), number, before, public, threshold or 1, void_from)


def _public_keys(text: str) -> list[bytes]:
    """Of a public key in hex, or of a file of private ones. Raises ConfigError."""
    if re.fullmatch(rf"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        return [bytes.fromhex(text)]
    if not Path(text).exists():
        raise ConfigError(
            f"--key {text!r}: is neither a public key (64 hex digits) nor a file of `dilocoxd authority new`;"
            " give one of them"
        )
    return [key.public for key in read_keys(read_secret(Path(text)), text)]
