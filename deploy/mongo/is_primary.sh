#!/usr/bin/env bash
# Health check of mongod: exit status 0 if it answers `hello` as a primary, so that it takes writes.
# It speaks the protocol itself, since an image of MongoDB may have no shell of MongoDB's.
#   header: length 52, request 1, answer to none, OP_MSG 2013; flags 0; section 0; {hello: 1, $db: "admin"}
#   TLS_FOLDER   it requires TLS: openssl connects
set -euo pipefail
address="${1:-127.0.0.1:27017}"
hello() {
  printf '\x34\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0'
  printf '\x1f\0\0\0\x10hello\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0'
}
says_primary() { timeout 5 dd bs=65536 count=1 2>/dev/null | LC_ALL=C grep -aqP '\x08isWritablePrimary\x00\x01'; }
if [[ -n "${TLS_FOLDER:-}" ]]; then
  coproc tls { exec openssl s_client -quiet -verify_return_error -CAfile "$TLS_FOLDER/ca.pem" -connect "$address" 2>/dev/null; }
  trap 'kill "$tls_PID" 2>/dev/null || true' EXIT
  hello >&"${tls[1]}"
  says_primary <&"${tls[0]}"
else
  exec 3<>"/dev/tcp/${address/://}"
  hello >&3
  says_primary <&3
fi
