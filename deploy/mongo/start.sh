#!/usr/bin/env bash
# Starts mongod as the one member of a replica set with authentication. Its key is made at the first start, in a volume.
#   TLS_FOLDER   require TLS, with the certificate of certificates.sh
set -euo pipefail
key=/data/configdb/keyfile
if [[ ! -s "$key" ]]; then
  (umask 077; head -c 96 /dev/urandom | base64 -w 0 > "$key.new"; chmod 400 "$key.new"; mv "$key.new" "$key")
fi
tls=()
if [[ -n "${TLS_FOLDER:-}" ]]; then
  # Clients log in by password; they need no certificate of their own.
  tls=(--tlsMode requireTLS --tlsCertificateKeyFile "$TLS_FOLDER/server.pem" --tlsCAFile "$TLS_FOLDER/ca.pem"
    --tlsAllowConnectionsWithoutCertificates)
fi
exec mongod --replSet "${REPLICA_SET:-rs0}" --keyFile "$key" --bind_ip_all --port 27017 --dbpath /data/db \
  --wiredTigerCacheSizeGB "${MONGO_CACHE_GB:-1}" --nounixsocket "${tls[@]}"
