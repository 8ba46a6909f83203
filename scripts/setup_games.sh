#!/usr/bin/env bash
# Install the packages of games and tasks that the tests of tests/sampler/environments/ play, in fixed versions, under
# .games/ (never in .venv: their needs clash with ours). Needs a package index; 430 MB, about a minute, once.
#
#   scripts/setup_games.sh
#
# Promise: returns at once when nothing changed (a stamp keyed by this file); two at once are safe (the second waits). Where the
# installation fails, it says loudly what is missing and exits with 1: the tests of those packages are then skipped, and counted.
#
#   PYTHON   makes the virtual environment; default: .venv/bin/python, else python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(gymnasium==1.2.2 pygame-ce==2.5.8 minigrid==3.2.0 reasoning-gym==0.1.25 textarena==0.7.4)

say() { printf 'games %3ds  %s\n' "$SECONDS" "$*" >&2; }
target=.games
stamp="$(sha256sum < scripts/setup_games.sh)"
mkdir -p "$target"
if command -v flock >/dev/null; then exec 9>"$target/setup.lock"; flock 9; fi
[[ -r "$target/stamp" && "$(<"$target/stamp")" == "$stamp" ]] && exit 0
python="${PYTHON:-}"
[[ -n "$python" ]] || python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"
say "installing ${packages[*]}"
if "$python" -m venv "$target/venv" >"$target/pip.log" 2>&1 \
    && timeout 300 "$target/venv/bin/python" -m pip --disable-pip-version-check install --quiet --progress-bar off \
         "${packages[@]}" >>"$target/pip.log" 2>&1; then
  echo "$stamp" > "$target/stamp"
  say "done"
  exit 0
fi
printf '\n!!! GAMES ARE MISSING: the tests against them will be skipped, and counted: %s/pip.log\n\n' "$target" >&2
exit 1
