#!/usr/bin/env bash
# An authority and a server's certificate, made at the first call: certificates.sh FOLDER PUBLIC_FOLDER NAMES
#   FOLDER/server.pem     certificate and key of the server, for it alone; FOLDER/ca.pem, which its clients need, also in PUBLIC_FOLDER
#   NAMES                 as in subjectAltName: DNS:mongo,IP:127.0.0.1
# The authority's key is deleted: it signs nothing else. New ones: empty both folders.
set -euo pipefail
umask 077
folder="$1" public="$2" names="$3"
if [[ ! -s "$folder/server.pem" ]]; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  new=(-newkey rsa:3072 -nodes -days 3650)
  openssl req -x509 "${new[@]}" -keyout "$work/ca.key" -out "$work/ca.pem" -subj "/CN=Tandem $(date -u +%FT%TZ)" 2>/dev/null
  openssl req "${new[@]}" -keyout "$work/server.key" -out "$work/server.csr" -subj /CN=tandem 2>/dev/null
  openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 3650 \
    -extfile <(printf 'subjectAltName=%s\n' "$names") -out "$work/server.crt" 2>/dev/null
  cat "$work/ca.pem" > "$folder/ca.pem"
  cat "$work/server.key" "$work/server.crt" > "$folder/server.pem.new"
  mv "$folder/server.pem.new" "$folder/server.pem"
fi
install -m 0644 "$folder/ca.pem" "$public/ca.pem"
