#!/usr/bin/env bash
# The pages as a site with search: site/index.html, readable from disk, or by any web server (search
# results then show their text, too). A broken link or anchor fails.
#
#   scripts/docs_site.sh            builds it (installs the extra `docs` into .venv when it is missing)
#   scripts/docs_site.sh serve      builds it, then serves it at http://127.0.0.1:8801/ until Ctrl-C
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-build}" in
  build | serve) ;;
  *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
[[ -x .venv/bin/python ]] || scripts/setup.sh
if ! .venv/bin/python -c 'import furo, myst_parser, sphinx' 2>/dev/null; then
  .venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt -e '.[docs]'
fi
.venv/bin/python -m sphinx -q -W --keep-going -b html -c scripts/docs_site -d site/.doctrees . site
cp site/README.html site/index.html
echo "site/index.html"
if [[ "${1:-build}" == serve ]]; then
  exec .venv/bin/python -m http.server --bind 127.0.0.1 --directory site 8801
fi
