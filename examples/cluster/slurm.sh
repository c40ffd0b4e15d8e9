#!/bin/bash
# Untested. A Ray cluster inside one Slurm allocation, and a run on it: sbatch examples/cluster/slurm.sh
# Requires a virtual environment with gearshift-ctr[ray], the prepared data and the runs in a folder shared by all nodes.
#SBATCH --job-name=gearshift
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

SHARED=${SHARED:-/shared}
source "$SHARED/venv/bin/activate"

# The token of this allocation, in a file that only you can read; not on a command line, where others would see it.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_TOKEN_PATH="$SHARED/ray-token-$SLURM_JOB_ID"
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')
port=6379

srun --nodes=1 --ntasks=1 -w "$head" --overlap \
    ray start --head --block --node-ip-address="$address" --port=$port --num-cpus="$SLURM_CPUS_PER_TASK" \
    --include-dashboard=false --disable-usage-stats &
for _ in $(seq 60); do
    timeout 5 bash -c "exec 3<>/dev/tcp/$address/$port" 2> /dev/null && break
    sleep 1
done
srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" --overlap \
    ray start --block --address="$address:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats &

# Five minutes before the end Slurm sends TERM to this script; gearshift saves and can be resumed in the next allocation.
# The batch script runs on the first node, which is the head.
gearshift train "$SHARED/clicks/config.yaml" cluster.engine=ray cluster.address="$address:$port" \
    workers=24 shards=4 cluster.placement=spread checkpoint.path="$SHARED/runs" &
train=$!
trap 'kill -TERM $train' TERM
wait $train || wait $train  # the first wait ends when the signal comes
