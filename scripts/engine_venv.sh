# Sourced by sglang_cpu.sh and vllm_cpu.sh: an engine in a virtual environment of its own, made once, pinned by a constraints file.
#
# They set `name` (sglang, vllm), `root` (where everything lies) and `constraints`, and define
#   refuse_other_machines    dies with status 3 on a machine that cannot have it
#   install_packages         into "$venv"; torch is there already
#   set_environment          variables of a server
#   serve MODEL_DIR ...      become the server (`check_model` comes first)
# and end with `run_command "$@"`.
script="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)/$(basename "${BASH_SOURCE[1]}")"
venv="$root/venv"
key="$(cat "$script" "${BASH_SOURCE[0]}" "$constraints" | sha256sum | cut -d' ' -f1)"

say() { printf '%s %3ds  %s\n' "$name" "$SECONDS" "$*" >&2; }
die() { printf '%s: %s\n' "$name" "$1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$script"; }
is_installed() { [[ -x "$venv/bin/python" && "$(cat "$root/install.stamp" 2>/dev/null)" == "$key" ]]; }
pinned() { grep -E "^($1)==" "$constraints"; }

pip_install() {
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --progress-bar off "$@" >>"$root/pip.log" 2>&1 \
    || { tail -n 15 "$root/pip.log" >&2; die "pip install $* failed; all of its messages: $root/pip.log"; }
}

install() {
  if is_installed; then return; fi
  refuse_other_machines
  mkdir -p "$root/tmp"
  export TMPDIR="$root/tmp"  # torch is unpacked here: /tmp may be a small one
  if command -v flock >/dev/null; then
    exec 9>"$root/install.lock"
    if ! flock -n 9; then
      say "another installation is running: waiting for it"
      flock 9
      if is_installed; then return; fi
    fi
  fi
  rm -f "$root/install.stamp"
  make_environment
  say "installing $(pinned torch)"
  pip_install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$(pinned torch)"
  install_packages
  echo "$key" > "$root/install.stamp"
  say "installed in $root"
}

make_environment() {
  if [[ -x "$venv/bin/python" ]]; then return; fi
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      say "making $venv with $("$candidate" --version)"
      "$candidate" -m venv "$venv"
      return
    fi
  done
  die "no CPython 3.11 or newer with the modules venv and ensurepip was found (looked for ${PYTHON:-python3.11, python3.12, python3.13, python3})" 3
}

mend_torchvision() {
  # PyPI's torchvision is a CUDA build. With a CPU torch its compiled operators cannot be loaded, and its import fails where
  # it registers their shapes. Image processors use none of these operators: torch resizes.
  local site; site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  echo '# emptied by engine_venv.sh: the compiled operators need a CUDA torch' > "$site/torchvision/_meta_registrations.py"
}

check_import() { # check_import MODULE, with the variables of a server
  set_environment
  "$venv/bin/python" -c "import $1" >"$root/import.log" 2>&1 \
    || { tail -n 15 "$root/import.log" >&2; die "it is installed, but $1 does not import; all of its messages: $root/import.log"; }
}

check_model() { # check_model MODEL_DIR
  [[ -n "${1:-}" && "$1" != -* ]] || die "serve needs a model: $script serve MODEL_DIR [--port P] [options]" 2
  [[ -f "$1/config.json" ]] || die "$1 has no config.json; expected a Hugging Face model directory" 2
  is_installed || die "it is not installed in $root: $script install"
}

run_command() {
  case "${1:-}" in
    install) install ;;
    installed) is_installed ;;
    serve) shift; check_model "$@"; set_environment; serve "$@" ;;
    -h | --help) usage ;;
    *) usage >&2; exit 2 ;;
  esac
}
