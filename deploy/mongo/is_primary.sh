#!/usr/bin/env bash
# Health check of mongod: exit status 0 if it answers `hello` as a primary, so that it takes writes.
# It speaks the protocol itself, since an image of MongoDB may have no shell of MongoDB's.
#   header: length 52, request 1, answer to none, OP_MSG 2013; flags 0; section 0; {hello: 1, $db: "admin"}
set -euo pipefail
exec 3<>/dev/tcp/127.0.0.1/27017
printf '\x34\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0' >&3
printf '\x1f\0\0\0\x10hello\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0' >&3
timeout 5 dd bs=65536 count=1 <&3 2>/dev/null | LC_ALL=C grep -aqP '\x08isWritablePrimary\x00\x01'
