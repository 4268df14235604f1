#!/usr/bin/env bash
# One shard of a sweep per task of a Slurm job array:
#
#     sbatch --array=1-64 tools/sweep_slurm.sh SWEEP.toml DIR
#     pleach sim merge DIR --out rows.jsonl
#
# DIR must be on a file system that all nodes share. A task that is requeued, or submitted again, continues its shard. To
# submit single tasks again, state the number of shards: sbatch --array=7,9 --export=ALL,SHARDS=64 …
#SBATCH --job-name=pleach-sweep
#SBATCH --cpus-per-task=1
#SBATCH --requeue
set -euo pipefail

if [ $# -ne 2 ] || [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    echo "usage: sbatch --array=1-N $0 SWEEP.toml DIR" >&2
    exit 2
fi
shards=${SHARDS:-$SLURM_ARRAY_TASK_MAX}
exec "${PLEACH:-pleach}" sim sweep "$1" --shard "$SLURM_ARRAY_TASK_ID/$shards" --out "$2" \
    --jobs "${SLURM_CPUS_PER_TASK:-1}"
