# Sourced by recipes (variables.sh): starts `python -m $1`, which writes its URL to a file and ends with the run, and sets MCP_MANAGER_URL.
start_server() {
  local module="$1" python="$2" address="$tasks/server.url" waited=0
  rm -f "$address"
  "$python" -m "$module" "$address" >"$tasks/server.log" 2>&1 </dev/null &
  while [[ ! -s "$address" ]]; do
    kill -0 $! 2>/dev/null && (( waited++ < 600 )) || die "its server did not start: $(tail -n 3 "$tasks/server.log")"
    sleep 0.2
  done
  MCP_MANAGER_URL="$(<"$address")"
  export MCP_MANAGER_URL
}
