#!/bin/bash
# One site on four machines of a Slurm cluster: the head trains, the others run outer parts for it, and with STAGES=1 and
# parallel.pipeline=4 one stage of its pipeline each (docs/cluster.md).
#   sbatch --export=ALL,RUN_DIR=/scratch/me/run examples/cluster/slurm.sh
# RUN_DIR was made before, on a file system that all machines see: `dilocoxd start ... --no-run --dir "$RUN_DIR"`, or
# `dilocoxd join LINK --no-run --dir "$RUN_DIR"`.
#SBATCH --job-name=dilocoxd
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --signal=B:TERM@120
#SBATCH --output=dilocoxd-%j.out
set -euo pipefail

: "${RUN_DIR:?say where the run directory is}"
[ -e "$RUN_DIR/run.toml" ] || {
    echo "RUN_DIR=$RUN_DIR is no run directory seen by $SLURMD_NODENAME; make it there first, as the lines above say" >&2
    exit 78
}
PARTS=${PARTS:-8}            # outer parts on each machine: a core each while a round is computed
STAGES=${STAGES:-0}          # pipeline stages that train on each machine but the head
LOCAL_DIR=${LOCAL_DIR:-/tmp} # of each node: snapshots' shares and error feedback, best on a disk of its own
# The same in the next job, which finds the error feedback there. Each machine adds its name: they may share LOCAL_DIR.
export NODE_DIR=$LOCAL_DIR/dilocoxd-node-$(basename "$RUN_DIR")
KEY=$RUN_DIR/node.key
NODES=$((SLURM_JOB_NUM_NODES - 1))
# Many machines have their own name in /etc/hosts, with an address that leads to nobody else.
ADDRESS=$(getent ahostsv4 "$SLURMD_NODENAME" | awk '$2 == "STREAM" && $1 !~ /^127\./ {print $1; exit}')
: "${ADDRESS:?no address of $SLURMD_NODENAME but loopback is known here: put that of its network into this line}"

[ -e "$KEY" ] || (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' > "$KEY")
dilocoxd config set "$RUN_DIR" "cluster.host=$ADDRESS" "cluster.outer_parts=$((NODES * PARTS))" "cluster.stages=$((NODES * STAGES))" \
    "workers.outer_parts=$PARTS"
dilocoxd check-config "$RUN_DIR"

# A node that failed is started again on its machine; 78 means that only another configuration would help.
srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --exclude="$SLURMD_NODENAME" --kill-on-bad-exit=0 \
    bash -c 'while :; do "$@" --dir "$NODE_DIR-$SLURMD_NODENAME" && exit 0; code=$?; [ $code -ne 78 ] || exit 78; sleep 5; done' node \
    dilocoxd node "$ADDRESS" --key "$KEY" --parts "$PARTS" --stages "$STAGES" &
nodes=$!

# Slurm's TERM comes to this script, two minutes before the end: the daemon leaves in 18 s. Exit code 1 is a failure that
# a new start mends, such as a node that lost its memory.
stop=0
trap 'stop=1; kill -TERM "$daemon" 2>/dev/null || true' TERM INT
while :; do
    dilocoxd run "$RUN_DIR" &
    daemon=$!
    code=0
    wait "$daemon" || code=$?
    while kill -0 "$daemon" 2>/dev/null; do
        code=0
        wait "$daemon" || code=$?
    done
    [ "$stop" = 0 ] && [ "$code" = 1 ] || break
    sleep 5
    [ "$stop" = 0 ] || break
done
kill "$nodes" 2>/dev/null || true
exit "$code"
