"""Refusals and what they say to do, as commands: typed wrong, refused in these words, typed as they say.

Every line is a command of dilocoxd, or of a shell behind `$`. `run` is the run directory of a founder with its key;
`two` has two authorities, whose keys are one.key and two.key, `half` the first of them; `mine` is somebody's own
folder, `file` a file.
"""

from dataclasses import dataclass
from typing import Final

HERE: Final = "--host 127.0.0.1 --port 0"
INIT: Final = f"init tiny {HERE} --dir"


@dataclass(frozen=True, slots=True)
class Row:
    """One refusal, followed."""

    file: str
    """Where the sentence stands, below the package."""
    words: str
    """What it says to do; part of the sentence in the source."""
    wrong: str
    right: str
    before: str = ""
    """What breaks the thing."""


ROWS: Final = (
    Row("config/presets/__init__.py", "or the path of a run.toml", f"init tinny {HERE} --dir new", f"{INIT} new"),
    Row("config/presets/__init__.py", "use one of", f"init tiny:spase {HERE} --dir new",
        f"init tiny:sparseloco {HERE} --dir new"),
    Row("store/rundir.py", "give --dir another directory", f"{INIT} run", f"{INIT} new"),
    Row("store/rundir.py", "use `dilocoxd run", f"{INIT} run", "check-config run"),
    Row("store/rundir.py", "give --dir a new or", f"{INIT} mine", f"{INIT} new"),
    Row("store/rundir.py", "give --dir a writable place", f"{INIT} file", f"{INIT} new"),
    Row("cli/commands.py", "give --dir a writable place", f"init tiny {HERE}", f"{INIT} new", "$ touch .tiny.new"),
    Row("store/rundir.py", "rename the folder,", "id gr\udcf6n", "$ mv $(printf 'gr\\366n') new\nid new",
        "$ cp -r run $(printf 'gr\\366n')"),
    Row("store/rundir.py", "make one with `dilocoxd init`", "config show new", f"{INIT} new\nconfig show new"),
    Row("cli/configuration/command.py", "choose one that `dilocoxd config show RUN_DIR` lists",
        "config show run network.prt", "config show run\nconfig show run network.port"),
    Row("cli/configuration/shipped.py", "choose one of", "files gpu", "files alerts.yml"),
    Row("cli/configuration/shipped.py", "give --out a writable folder", "files --out file/new", "files --out new"),
    Row("cli/overrides.py", "write it as SECTION.FIELD=VALUE", f"{INIT} new --set outer",
        f"{INIT} new --set outer.lr=0.5"),
    Row("cli/overrides.py", "leave one of them out", "init tiny --host 127.0.0.1:4001 --port 5 --dir new",
        "init tiny --host 127.0.0.1:4001 --dir new"),
    Row("cli/corpus.py", "remove it, or give stores", f"{INIT} new --set data.volumes=2", f"{INIT} new"),
    Row("config/environment.py", "use one of", "config show run", "config show run",
        "export DILOCOXD_NETWROK__PORT=1"),
    Row("config/loading.py", "correct that line", "config show run", "$ sed -i 1d run/site.toml\nconfig show run",
        "$ sed -i '1i a = [' run/site.toml"),
    Row("config/loading.py", "give a run.toml or site.toml", f"init big.toml {HERE} --dir new",
        f"init run/run.toml {HERE} --dir new",
        "$ head -c 3000000 /dev/zero > big.toml"),
    Row("config/site.py", "give one of them another port", "config set run network.port=4001 api.port=4001",
        "config set run network.port=4001 api.port=4002"),
    Row("cli/run_dir/members.py", "write it as 30m, 12h or 7d", "invite run --expires 5x", "invite run --expires 30m"),
    Row("cli/run_dir/members.py", "bring the key with `dilocoxd authority import`", "invite two",
        "authority import two one.key\ninvite two"),
    Row("cli/run_dir/authority.py", "bring one with `dilocoxd authority import`", "authority export two out.key",
        "authority import two one.key\nauthority export two out.key"),
    Row("cli/run_dir/authority.py", "name a new file", "authority new one.key", "authority new new.key"),
    Row("cli/run_dir/authority.py", "name the new authorities with --key", "authority rotate half",
        "authority new new.key\nauthority rotate half --key new.key"),
    Row("cli/run_dir/authority.py", "give one of them", "authority rotate half --key nothing",
        "authority rotate half --key three.key"),
    Row("cli/run_dir/authority.py", "lower it, or name more", "authority rotate half --key three.key --threshold 2",
        "authority rotate half --key three.key --key two.key --threshold 2"),
    Row("cli/run_dir/authority.py", "leave --key, --threshold and --void-invites out",
        "authority rotate half --key three.key --signed authorities-1.json",
        "authority rotate half --signed authorities-1.json", "authority rotate half --key three.key"),
    Row("cli/run_dir/authority.py", "give a file of `dilocoxd authority rotate`",
        "authority rotate half --signed invite.json",
        "authority rotate half --key three.key\nauthority rotate half --signed authorities-1.json",
        "invite half\n$ mv invite-*.json invite.json"),
    Row("cli/run_dir/members.py", "have it signed with `dilocoxd authority sign`", "invite half --signed invite.json",
        "authority sign invite.json two.key\ninvite half --signed invite.json",
        "invite half\n$ mv invite-*.json invite.json"),
    Row("cli/run_dir/members.py", "give the file that `dilocoxd invite` wrote",
        "invite half --signed authorities-1.json",
        "invite half\n$ mv invite-*.json invite.json\nauthority sign invite.json two.key\n"
        "invite half --signed invite.json", "authority rotate half --key three.key"),
    Row("cli/run_dir/requests.py", "give one", "authority sign file one.key",
        "authority rotate half --key three.key\nauthority sign authorities-1.json two.key"),
    Row("cli/run_dir/requests.py", "give the file of another key", "authority sign authorities-1.json three.key",
        "authority sign authorities-1.json two.key", "authority rotate half --key three.key"),
    Row("store/admission.py", "remove it, the others tell what was in it", "invite run",
        "$ rm run/members.json\ninvite run", "$ echo junk > run/members.json"),
    Row("store/admission.py", "run: chmod 600", "invite run", "$ chmod 600 run/authority.key\ninvite run",
        "$ chmod 644 run/authority.key"),
    Row("store/admission.py", "restore it from a backup", "invite run",
        "$ cp run/backup run/authority.key\ninvite run",
        "$ cp run/authority.key run/backup; printf '\\377' > run/authority.key"),
    Row("cli/run_dir/admission.py", "restore it from a backup", "invite run",
        "$ cp run/backup run/authority.key\ninvite run",
        "$ cp -p run/authority.key run/backup; echo zz > run/authority.key"),
    Row("cli/run_dir/admission.py", "remove it, and a site with an authority's key makes another", "invite run",
        "$ rm run/invite\nidentity new run\n$ test -s run/invite\ninvite run", "$ echo junk > run/invite"),
    Row("cli/run_dir/admission.py", "undo the change, or make a new run", "run run",
        f"$ cp run/run.toml mine; cp backup.toml run/run.toml\nrun run\ninit mine/run.toml {HERE} --dir new\nrun new",
        "$ cp run/run.toml backup.toml; sed -i 's/^seq_len = .*/seq_len = 64/' run/run.toml"),
    Row("store/rundir.py", "stop it and give", "run run", "$ kill $(cat holder); flock run/lock true\nrun run",
        "$ exec 9>>run/lock; flock 9; sleep 60 & echo $! > holder"),
    Row("cli/run_dir/authority.py", "holds no key of this run's authorities", "authority import half three.key",
        "authority import half two.key"),
    Row("cli/overrides.py", "--host: ", "init tiny --host http://192.168.1.4 --port 0 --dir new", f"{INIT} new"),
    Row("config/environment.py", "take one of them back", "init tiny --host 127.0.0.1 --port 4002 --dir new",
        "init tiny --host 127.0.0.1 --port 4002 --dir new", "export DILOCOXD_NETWORK__PORT=4001"),
    Row("cli/overrides.py", "give an address of this machine", "init tiny --host 203.0.113.9 --port 0 --dir new",
        f"{INIT} new"),
    Row("cli/plan.py", "leave it out, plan takes of it only",
        "plan tiny --link 10M --sites 2 --set network.port=1", "plan tiny --link 10M --sites 2"),
    Row("cli/plan.py", "; lower it, or", "plan tiny --link 10M --sites 2 --nodes 2",
        "plan tiny --link 10M --sites 2 --nodes 2 --set parallel.pipeline=2"),
    Row("cli/plan.py", "those of one node; give one",
        "plan tiny --link 10M --sites 2 --gpus 2xA100 --gpus-per-node 2xA100",
        "plan tiny --link 10M --sites 2 --gpus-per-node 2xA100"),
    Row("cli/plan.py", "do not divide among them",
        "plan tiny --link 10M --sites 2 --gpus 3xA100 --nodes 2 --set parallel.pipeline=2",
        "plan tiny --link 10M --sites 2 --gpus-per-node 2xA100 --nodes 2 --set parallel.pipeline=2"),
    Row("cli/plan.py", "contradict each other; leave one out",
        "plan tiny --link 10M --sites 2 --stages 1 --set parallel.pipeline=2",
        "plan tiny --link 10M --sites 2 --stages 1"),
    Row("cli/configuration/editing.py", "change the file by hand", "config set run network.port=4002",
        "$ sed -i s/4001/4002/ run/site.toml\nconfig show run network.port",
        "$ echo 'network = { port = 4001 }' > run/site.toml"),
    Row("config/loading.py", "cannot be read (", "config show run", "$ touch run/site.toml\nconfig show run",
        "$ rm run/site.toml"),
    Row("cli/client.py", "api.port=8080`", "status run", "config set run api.port=8080\nconfig show run api.port"),
    Row("cli/client.py", "give a run directory, or an address like", "log show localhost:port", "log show run"),
    Row("cli/client.py", "or leave it out", "log show 127.0.0.1:1", "log show run",
        "export DILOCOXD_API_TOKEN=two words"),
    Row("cli/logs.py", "begin with `dilocoxd run", "logs run", "run run"),
    Row("cli/run_dir/members.py", "use the run directory where it was", "invite copy --signed invite.json",
        "authority sign invite.json two.key\ninvite half --signed invite.json",
        "$ cp -r half copy\ninvite half\n$ mv invite-*.json invite.json"),
    Row("cli/run_dir/members.py", "give others the line that `dilocoxd start` prints", "invite open", "run open",
        f"{INIT} open --api-port 0 --set admission.mode=open"),
    Row("cli/run_dir/members.py", "list the others at each site:", "evict bob open",
        "config set open network.peers_allowed=[]", f"{INIT} open --api-port 0 --set admission.mode=open"),
    Row("config/environment.py", "did you mean", "config show run",
        "export DILOCOXD_NETWORK__PORT=4001\nconfig show run network.port", "export DILOCOXD_NETWORK_PORT=4001"),
)  # fmt: skip
