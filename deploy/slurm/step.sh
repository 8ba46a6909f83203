# Sourced by the sbatch files: run_step OPTIONS_OF_SRUN... COMMAND..., one launcher on each node.
#
# A job that ends by itself after SIGTERM counts as finished, so Slurm requeues none that drained within its grace time. Here it
# requeues itself then: the launcher ends with 130 or 143 when it was asked to stop, and the job is still RUNNING unless it was cancelled.
run_step() {
  local status=0 step state job="$SLURM_JOB_ID"
  # Not the number alone: that of an array's last task is also the whole array's.
  if [[ -n "${SLURM_ARRAY_TASK_ID:-}" ]]; then job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"; fi
  srun "$@" &
  step=$!
  trap 'kill -TERM "$step" 2>/dev/null || true' TERM # this shell may get it alone; the launcher takes a second one as the first
  while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done
  wait "$step" || status=$?
  if ((status == 130 || status == 143)); then
    state="$(squeue -h -j "$job" -o %T 2>/dev/null || true)"
    if [[ "$state" == RUNNING ]]; then
      echo "stopped by a signal while the job is $state: it is requeued"
      scontrol requeue "$job" || true
    fi
  fi
  return "$status"
}
