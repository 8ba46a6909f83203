#!/usr/bin/env bash
# Install the public MCP servers that tests/sampler/test_foreign_servers.py plays against (four from npm, three from PyPI), and
# the MCP conformance suite (npm), whose client scenarios tests/sampler/test_conformance.py runs:
# in fixed versions, under .mcp_servers/ (never in .venv, never globally). Needs a package index; takes about a minute, once.
#
#   scripts/setup_mcp_servers.sh
#
# Promise: returns at once when nothing changed (a stamp keyed by this file); two at once are safe (the second waits).
# Without node and npm (as root on a Debian-like system they are installed, where their download takes under 45 s), or where an
# installation fails, it says loudly what is missing and exits with 1: the tests of those servers are then skipped, and counted.
#
#   PYTHON   makes the virtual environment of the PyPI servers; default: .venv/bin/python, else python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

npm_servers=(
  @modelcontextprotocol/server-everything@2026.8.31
  @modelcontextprotocol/server-filesystem@2026.8.31
  @modelcontextprotocol/server-memory@2026.8.31
  @modelcontextprotocol/server-sequential-thinking@2026.8.31
  @modelcontextprotocol/conformance@0.2.0-alpha.12
)
pypi_servers=(mcp-server-time==2026.10.19 mcp-server-git==2026.10.19 mcp-server-fetch==2026.10.24)

say() { printf 'mcp servers %3ds  %s\n' "$SECONDS" "$*" >&2; }
target=.mcp_servers
stamp="$(sha256sum "${BASH_SOURCE[0]##*/}" 2>/dev/null || sha256sum scripts/setup_mcp_servers.sh)"
stamp="${stamp%% *}"
mkdir -p "$target"
if command -v flock >/dev/null; then exec 9>"$target/setup.lock"; flock 9; fi
is_stamped() { [[ -r "$target/$1.stamp" && "$(<"$target/$1.stamp")" == "$stamp" ]]; }

install_node() {
  [[ "$(id -u)" == 0 && ! -e "$target/apt.failed" ]] && command -v apt-get >/dev/null || return 1
  say "installing Debian's nodejs and npm"
  local apt=(apt-get -o DPkg::Lock::Timeout=60 install -y -qq --no-install-recommends)
  { timeout 30 apt-get update -qq && timeout 45 "${apt[@]}" --download-only nodejs npm && "${apt[@]}" nodejs npm; } \
    >"$target/apt.log" 2>&1 || { touch "$target/apt.failed"; return 1; }  # tried once; remove that file to try again
}

install_npm_servers() {
  is_stamped npm && return 0
  command -v npm >/dev/null && command -v node >/dev/null || install_node || { echo "node and npm are not there" ; return 1; }
  say "installing ${#npm_servers[@]} packages from npm"
  timeout 300 npm install --prefix "$target/npm" --no-audit --no-fund --no-save --loglevel=error "${npm_servers[@]}" \
    >"$target/npm.log" 2>&1 || { echo "npm install failed: $target/npm.log"; return 1; }
  echo "$stamp" > "$target/npm.stamp"
}

install_pypi_servers() {
  is_stamped pypi && return 0
  local python="${PYTHON:-}"
  [[ -n "$python" ]] || python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"
  say "installing ${#pypi_servers[@]} servers from PyPI"
  { "$python" -m venv "$target/pypi" \
      && timeout 300 "$target/pypi/bin/python" -m pip --disable-pip-version-check install --quiet --progress-bar off \
           "${pypi_servers[@]}"; } >"$target/pypi.log" 2>&1 || { echo "pip install failed: $target/pypi.log"; return 1; }
  echo "$stamp" > "$target/pypi.stamp"
}

# Side by side: one waits for the network while the other unpacks.
install_pypi_servers >"$target/pypi.missing" & pypi=$!
install_npm_servers >"$target/npm.missing" || true
wait "$pypi" || true
if is_stamped npm && is_stamped pypi && [[ ! -e "$target/readability.stamp" ]]; then
  # mcp-server-fetch would fetch its node part in its first call, within a test's time-out.
  timeout 120 "$target/pypi/bin/python" -c 'from readabilipy import simple_json_from_html_string as read
read("<p>x</p>", use_readability=True)' >"$target/readability.log" 2>&1 && touch "$target/readability.stamp"
fi
missing="$(cat "$target/npm.missing" "$target/pypi.missing")"
[[ -z "$missing" ]] && exit 0
printf '%s\n' "" "!!! MCP SERVERS ARE MISSING: the tests against them will be skipped, and counted." "$missing" "" | sed 's/^./!!! &/; s/^!!! !!!/!!!/' >&2
exit 1
