#!/usr/bin/env bash
# Install what the viewer's tests in a browser need: axe-core (npm, in a fixed version, under .axe/) and, as root on a Debian-like
# system, Chromium. Takes about a minute, once; after scripts/setup_mcp_servers.sh, which brings node and npm.
#
#   scripts/setup_browser.sh
#
# Promise: returns at once when nothing changed (a stamp keyed by this file). Where something cannot be installed it says loudly
# what is missing and exits with 1: the tests are then skipped, and counted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

axe=axe-core@4.14.1
target=.axe
say() { printf 'browser %3ds  %s\n' "$SECONDS" "$*" >&2; }
mkdir -p "$target"
if command -v flock >/dev/null; then exec 9>"$target/setup.lock"; flock 9; fi

install_axe() {
  [[ -r "$target/setup.stamp" && "$(<"$target/setup.stamp")" == "$axe" ]] && return 0
  command -v npm >/dev/null || { echo "npm is not there"; return 1; }
  timeout 120 npm install --prefix "$target" --no-audit --no-fund --no-save --loglevel=error "$axe" >"$target/npm.log" 2>&1 \
    || { echo "npm install failed: $target/npm.log"; return 1; }
  echo "$axe" > "$target/setup.stamp"
}

install_chromium() {
  for name in chromium chromium-browser google-chrome; do command -v "$name" >/dev/null && return 0; done
  [[ "$(id -u)" == 0 && ! -e "$target/apt.failed" ]] && command -v apt-get >/dev/null || { echo "no Chromium: apt-get install chromium"; return 1; }
  say "installing Debian's chromium"
  local apt=(apt-get -o DPkg::Lock::Timeout=60 install -y -qq --no-install-recommends)
  { timeout 30 apt-get update -qq && timeout 120 "${apt[@]}" --download-only chromium && "${apt[@]}" chromium; } >"$target/apt.log" 2>&1 \
    || { touch "$target/apt.failed"; echo "apt-get install chromium failed: $target/apt.log"; return 1; }  # remove apt.failed to try again
}

missing=""
for part in axe chromium; do
  said="$("install_$part")" || missing+="${missing:+; }$said"
done
if [[ -n "$missing" ]]; then
  say "THE VIEWER IS NOT TESTED IN A BROWSER: $missing"
  exit 1
fi
