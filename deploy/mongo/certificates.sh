#!/usr/bin/env bash
# An authority and certificates of servers, made at the first call: certificates.sh PUBLIC_FOLDER FOLDER=NAMES ...
#   FOLDER/server.pem     certificate and key of one server, for it alone; FOLDER/ca.pem, which its clients need, also in PUBLIC_FOLDER
#   NAMES                 as in subjectAltName: DNS:mongo,IP:127.0.0.1
# The authority's key is deleted: it signs nothing else. A server without a certificate therefore gets a new authority, and so do
# all others. New ones: empty every folder.
set -euo pipefail
umask 077
public="$1"
shift
servers=("$@")
new=(-newkey rsa:3072 -nodes -days 3650)

certificate() { # FOLDER NAMES
  openssl req "${new[@]}" -keyout "$work/server.key" -out "$work/server.csr" -subj /CN=tandem 2>/dev/null
  openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 3650 \
    -extfile <(printf 'subjectAltName=%s\n' "$2") -out "$work/server.crt" 2>/dev/null
  cat "$work/ca.pem" > "$1/ca.pem"
  cat "$work/server.key" "$work/server.crt" > "$1/server.pem.new"
  mv "$1/server.pem.new" "$1/server.pem"
}

complete=yes
for server in "${servers[@]}"; do
  [[ -s "${server%%=*}/server.pem" ]] && cmp -s "${servers[0]%%=*}/ca.pem" "${server%%=*}/ca.pem" || complete=no
done
if [[ "$complete" == no ]]; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  openssl req -x509 "${new[@]}" -keyout "$work/ca.key" -out "$work/ca.pem" -subj "/CN=Tandem $(date -u +%FT%TZ)" 2>/dev/null
  for server in "${servers[@]}"; do
    certificate "${server%%=*}" "${server#*=}"
  done
fi
install -m 0644 "${servers[0]%%=*}/ca.pem" "$public/ca.pem"
