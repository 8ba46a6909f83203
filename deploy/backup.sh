#!/usr/bin/env bash
# Backs up and restores a Compose project: the database, the administrator's password, checkpoints and published weights.
#
#   deploy/backup.sh save FILE.tar       stop what writes, copy the volumes, start it again
#   deploy/backup.sh restore FILE.tar    into a project without volumes: COMPOSE_PROJECT_NAME=other deploy/backup.sh restore FILE.tar
#
# Every other password, and the tokens of MCP-Docker and of the gateways, are made anew at the next `up`: `prepare` logs in with the
# administrator's password. Agents elsewhere and other users of MCP-Docker need the new tokens.
#   COMPOSE_PROJECT_NAME   the project; default: deploy, the folder's name
#   IMAGES, TANDEM_VERSION as for docker-compose.yml: the image whose tar is used
set -euo pipefail
umask 077  # FILE.tar has passwords and conversations in it
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
project="${COMPOSE_PROJECT_NAME:-deploy}"
image="${IMAGES:-tandem}/sampler:${TANDEM_VERSION:-0.1.0}"
volumes=(mongo-data credentials-root output)

mounts() {  # mode
  local volume
  for volume in "${volumes[@]}"; do printf -- '-v %s_%s:/volumes/%s%s ' "$project" "$volume" "$volume" "$1"; done
}
in_tar() {  # mode, arguments of tar: as root, who keeps the owners
  # shellcheck disable=SC2046  # words on purpose
  docker run --rm -i --network none --user 0 --entrypoint tar $(mounts "$1") "$image" "${@:2}"
}
start_again() {  # what `save` stopped, the database first
  local status=$? one
  [[ $status == 0 ]] || { rm -f "$file.part"; echo "backup: failed (status $status); there is no $file" >&2; }
  [[ -z "${mongo:-}" ]] || docker start "$mongo" >/dev/null
  for one in "${stopped[@]}"; do [[ "$one" == "${mongo:-}" ]] || docker start "$one" >/dev/null; done
  exit "$status"
}
running() { docker ps -q --filter "label=com.docker.compose.project=$project"; }

case "${1:-}" in
  save)
    [[ $# == 2 && ! -e "$2" ]] || { echo "backup: expected a FILE that does not exist yet" >&2; exit 2; }
    file="$2"
    mapfile -t stopped < <(running)
    mongo="$(docker ps -q --filter "label=com.docker.compose.project=$project" --filter label=com.docker.compose.service=mongo)"
    trap start_again EXIT  # also after a failure or Ctrl-C
    # The database last: the others still write while they end.
    for one in "${stopped[@]}"; do [[ "$one" == "$mongo" ]] || docker stop "$one" >/dev/null; done
    [[ -z "$mongo" ]] || docker stop "$mongo" >/dev/null
    in_tar :ro -C /volumes -c . > "$2.part"
    mv "$2.part" "$2"
    echo "$2: $(du -h "$2" | cut -f1) of ${volumes[*]}" ;;
  restore)
    [[ $# == 2 && -r "$2" ]] || { echo "backup: expected a FILE" >&2; exit 2; }
    for volume in "${volumes[@]}"; do
      if docker volume inspect "${project}_$volume" >/dev/null 2>&1; then
        echo "backup: the volume ${project}_$volume is there; expected a project without volumes (docker-compose down --volumes deletes them)" >&2
        exit 2
      fi
    done
    in_tar "" -C /volumes -xp < "$2"
    echo "restored into project $project; start it with docker-compose -p $project up -d"
    echo "That makes new tokens of the gateways and of MCP-Docker: give them to agents elsewhere:"
    echo "  docker-compose -p $project --profile gateway run --rm -T --no-deps --entrypoint cat gateway /run/gateway/token" ;;
  *) usage; [[ "${1:-}" == --help || "${1:-}" == -h ]] || exit 2 ;;
esac
