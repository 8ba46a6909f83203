# Runs a program that ends by itself, as the first process of a container that is started again whenever it ends. After status 0 it waits.
stopped="" program=""
trap 'stopped=1; [[ -z "$program" ]] || kill -TERM "$program" 2>/dev/null' TERM
"$@" &
program=$!
[[ -z "$stopped" ]] || kill -TERM "$program" 2>/dev/null # it came before the number was known
while kill -0 "$program" 2>/dev/null; do # a signal interrupts `wait`
  wait "$program"
done
wait "$program" # it has ended, perhaps before the loop: bash knows its status
status=$?
if ((status)) || [[ -n "$stopped" ]]; then exit "$status"; fi
trap 'exit 0' TERM
[[ -z "$stopped" ]] || exit 0 # it came just before
echo "the run has ended; kubectl scale statefulset trainer --replicas=0 gives its machines back"
sleep infinity &
wait
