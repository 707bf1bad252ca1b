"""What a daemon, a node or a sink refuses when it starts: files, ports and folders, put right as it is said."""

import asyncio
import contextlib
import re
import shutil
import socket
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import hivemind
import pytest

from dilocoxd.api.connections import Connections, listening, tls_context
from dilocoxd.cli.commands import announce_run
from dilocoxd.config.api import ApiSection
from dilocoxd.config.site import load_site
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.process.token import load_or_create_token
from dilocoxd.daemon.settings import membership_of
from dilocoxd.daemon.workers.local_server import LocalServer
from dilocoxd.ids import RunId
from dilocoxd.ipc.sealed import KEY_BYTES, read_node_key
from dilocoxd.ipc.socket_folder import short_parent
from dilocoxd.store.admission import write_secret
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.direct.sockets import listen_on
from dilocoxd.swarm.discovery.identity import create, load, load_or_create
from dilocoxd.swarm.p2pd.binary import check_binary
from dilocoxd.swarm.p2pd.settings import hold_ports
from dilocoxd.swarm.p2pd.slim_import import import_slim
from dilocoxd.telemetry.sinks import needs, open_sinks
from dilocoxd.wire.entry import genesis_hash
from tests.documents.site import ROOT
from tests.harness.certificates import self_signed
from tests.harness.outer_worker.run_on_disk import make_run
from tests.remedies.refused.rooms.told import told
from tests.remedies.refused.rows import INIT
from tests.remedies.test_findings import invoke

P2PD: Final = Path(hivemind.__path__[0]) / "hivemind_cli" / "p2pd"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of another program, which `stop` ends."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def write_certificate(folder: Path, name: str) -> ApiSection:
    """A certificate that signs itself, with its key."""
    certificate, key = self_signed(folder, name)
    return section(tls_certificate=str(certificate), tls_key=str(key))


def section(**fields: object) -> ApiSection:
    return ApiSection.model_validate(fields)


def test_a_certificate_and_the_key_of_another(tmp_path: Path) -> None:
    one, other = (write_certificate(tmp_path, name) for name in ("one", "other"))
    with told("api/connections.py", "give PEM files that belong together and that the daemon may read"):
        tls_context(one.model_copy(update={"tls_key": other.tls_key}))
    assert tls_context(one) is not None


async def test_a_port_of_the_api_that_is_taken(taken: int) -> None:
    async def listen(port: int) -> None:
        connections = Connections(4)
        connections.server = asyncio.Protocol
        async with listening(connections, section(host="127.0.0.1", port=port)):
            pass

    with told("api/connections.py", "give another port with --api-port (api.port in site.toml) or stop the other"):
        await listen(taken)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    await listen(number)


def listens(call: Callable[[int], contextlib.AbstractContextManager[object]], port: int) -> None:
    with call(port):
        pass


@contextlib.contextmanager
def door(port: int) -> Iterator[None]:
    one = NodeDoor("127.0.0.1", port, b"\0" * KEY_BYTES, "this start")
    one.listen()
    yield
    one._socket.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def data(port: int) -> Iterator[None]:
    (sock,) = listen_on(["127.0.0.1"], port)
    with sock:
        yield


@contextlib.contextmanager
def p2pd(port: int) -> Iterator[None]:
    with hold_ports((f"/ip4/127.0.0.1/tcp/{port}",)):
        yield


def test_ports_that_are_taken(taken: int) -> None:
    with told("daemon/head/door.py", "choose an address of this machine and a free port"):
        listens(door, taken)
    with told("swarm/direct/sockets.py", "stop the other program, give another port (network.data_port"):
        listens(data, taken)
    with told("swarm/p2pd/settings.py", "stop the other program or give another port with --port"):
        listens(p2pd, taken)
    for one in (door, data, p2pd):
        listens(one, 0)


def test_a_port_whose_program_is_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    for one in (door, data, p2pd):
        listens(one, port)


def test_addresses_to_listen_on() -> None:
    with (
        told("swarm/p2pd/settings.py", "write /ip4/ADDRESS/tcp/PORT or /ip6/ADDRESS/tcp/PORT"),
        hold_ports(("here:0",)),
    ):
        pass
    with hold_ports(("/ip4/127.0.0.1/tcp/0",)):
        pass


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with told("daemon/process/token.py", "give a writable place, or make it yourself"):
        load_or_create_token(tmp_path / "none" / "token")
    assert load_or_create_token(path)
    path.chmod(0o604)
    with told("daemon/process/token.py", "everybody can use it; run: chmod 600"):
        load_or_create_token(path)
    path.chmod(0o600)
    assert load_or_create_token(path)
    path.write_text("short")
    with told("daemon/process/token.py", "delete the file to get a new one"):
        load_or_create_token(path)
    path.unlink()
    assert load_or_create_token(path)
    with told("daemon/process/token.py", "cannot be read (VALUE); check path and owner"):
        load_or_create_token(tmp_path)
    assert load_or_create_token(tmp_path / "token")


def test_a_site_that_is_no_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The founder's key was moved away before the first start, or its run.toml is somebody else's."""
    monkeypatch.chdir(tmp_path)
    invoke(*f"{INIT} run --api-port 0".split())
    run_dir = open_run_dir(Path("run"))

    def require_member(name: str) -> None:
        directory = open_run_dir(Path(name))
        manifest, site = directory.load()
        announce_run(directory)
        assert membership_of(directory, manifest, load(directory.identity(site)).peer_id)

    run_dir.membership.unlink(missing_ok=True)
    Path("run/authority.key").rename("authority.key")
    with told("daemon/settings.py", "Its founder gives that key with `dilocoxd authority import`"):
        require_member("run")
    invoke("authority", "import", "run", "authority.key")
    require_member("run")
    invoke(*["init", "run/run.toml", "--host", "127.0.0.1", "--port", "0", "--api-port", "0", "--dir", "copy"])
    with told("daemon/settings.py", "copy of another run's, found it anew with --set admission.authorities=[]"):
        require_member("copy")
    anew = "init run/run.toml --host 127.0.0.1 --port 0 --dir anew --set admission.authorities=[]"
    invoke(*anew.split())
    require_member("anew")


@pytest.mark.parametrize("is_each_alone", [False, True])
def test_a_site_of_a_run_that_several_authorities_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_each_alone: bool
) -> None:
    """Whoever founds it brings enough keys, or none but its own: the first member comes by a link of its own."""
    monkeypatch.chdir(tmp_path)
    keys = [invoke("authority", "new", name).output.strip() for name in ("one.key", "two.key")]
    several = f'admission.authorities=["{keys[0]}","{keys[1]}"]'
    invoke(*f"{INIT} run --api-port 0 --set {several} --set admission.threshold=2".split())
    run_dir = open_run_dir(Path("run"))
    manifest, site = run_dir.load()
    with told("daemon/settings.py", "bring as many keys with `dilocoxd authority import"):
        membership_of(run_dir, manifest, load_or_create(run_dir.identity(site)).peer_id)
    invoke("authority", "import", "run", "one.key")
    if is_each_alone:
        invoke("invite", "run", "--uses", "2")
        (request,) = Path().glob("invite-*.json")
        invoke("authority", "sign", str(request), "two.key")
        link = invoke("invite", "run", "--signed", str(request)).output.split("dilocoxd join ")[1].strip()
        assert "asking" not in invoke("join", link, "--dir", "run", "--no-run").output
        assert not load_site(run_dir.site_toml).network.bootstrap, "it asks itself for nobody"
    else:
        invoke("authority", "import", "run", "two.key")
    assert membership_of(run_dir, manifest, load(run_dir.identity(site)).peer_id)


async def test_paths_that_are_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(path: Path) -> None:
        server = LocalServer(path, lambda hello, connection: None)
        server.listen()
        server._socket.close()  # type: ignore[union-attr]

    long = tmp_path / ("x" * 100)
    long.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        with told("daemon/workers/local_server.py", "use a shorter run directory"):
            listen(long / "sock")
        listen(Path(short) / "sock")
        monkeypatch.setattr("os.access", lambda path, mode: Path(path) != Path("/tmp"))
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with told("ipc/socket_folder.py", "set TMPDIR to a folder of at most VALUE bytes that this user may write to"):
            short_parent(26)
        monkeypatch.setattr(tempfile, "tempdir", short)  # as Python has it from TMPDIR
        assert short_parent(26) == Path(short)


def test_node_keys(tmp_path: Path) -> None:
    heads, path = tmp_path / "head.key", tmp_path / "node.key"
    write_secret(heads, "5a" * KEY_BYTES)
    path.write_text("no key")
    with told("ipc/sealed.py", "copy cluster.key_file of the head to this machine"):
        read_node_key(path)
    path.write_text("5a" * 31)
    with told("ipc/sealed.py", "copy that of the head again"):
        read_node_key(path)
    path.write_text(heads.read_text())
    path.chmod(0o644)
    with told("ipc/sealed.py", "others could read it; run: chmod 600"):
        read_node_key(path)
    path.chmod(0o600)
    assert len(read_node_key(path)) == KEY_BYTES


def test_identity_keys(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    create(path)
    with told("swarm/discovery/identity.py", "exists already; remove it first if a new identity is wanted"):
        create(path)
    path.unlink()
    create(path)
    path.chmod(0o640)
    with told("swarm/discovery/identity.py", "others could read it; run: chmod 600"):
        load(path)
    path.chmod(0o600)
    load(path)
    with told("swarm/discovery/identity.py", "cannot be read (VALUE); check path and owner"):
        load(tmp_path)
    load(path)


def test_p2pd_of_another_version(tmp_path: Path) -> None:
    """To install hivemind again brings the program that was tested."""
    path = tmp_path / "p2pd"
    with told("swarm/p2pd/binary.py", "cannot be read (VALUE); install hivemind again"):
        check_binary(path, "x86_64")
    path.write_bytes(b"#!/bin/sh\n")
    with told("swarm/p2pd/binary.py", "install the hivemind that constraints.txt names again"):
        check_binary(path, "x86_64")
    shutil.copy(P2PD, path)
    check_binary(path, "x86_64")


def test_packages_that_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip is told to install is a name that it knows, and brings the package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with monkeypatch.context() as patch:
        patch.setattr("sys.meta_path", [])
        for package in ("tensorboard", "wandb"):
            patch.delitem(sys.modules, package, raising=False)
            with told("telemetry/sinks.py", "is not installed; pip install 'dilocoxd[VALUE]'"):
                needs(package, "sinks.this")
            assert any(re.split("[<>=]", one)[0] == package for one in extras[package])
        patch.delitem(sys.modules, "hivemind", raising=False)
        with told("swarm/p2pd/slim_import.py", "install dilocoxd with its dependencies"):
            import_slim()
    assert len(open_sinks("board", "", "run", tmp_path)) == 1
    import_slim()


def test_a_log_of_another_run(tmp_path: Path) -> None:
    """The other way, a new run of the changed file, is a row of its own (cli/run_dir/admission.py)."""
    made = make_run(tmp_path, rounds=1, snapshots_at=())
    hashed = made.manifest.sha256()
    with told("store/log.py", "undo the change, or make a new run with `dilocoxd start run.toml`"):
        EntryLog(made.run_dir.log, RunId("other-0123456789abcdef"), genesis_hash(made.manifest.run_id, hashed))
    again = EntryLog(made.run_dir.log, made.manifest.run_id, genesis_hash(made.manifest.run_id, hashed))
    assert again.height == 1
