#!/usr/bin/env bash
# Builds both images and trains CartPole with them: parameter server, RLX server, environment, each in a container; then
# SIGTERM, after which a checkpoint must be there. Takes minutes and some gigabytes. ENGINE is docker or podman.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

engine=${ENGINE:-docker}
command -v "$engine" >/dev/null || {
  echo "check: there is no $engine; ENGINE=podman names another engine" >&2
  exit 2
}
project=relaax-check-$$
config=/config/da3c_gym_cartpole.yaml
trap '"$engine" rm --force --volumes "$project-ps" "$project-rlx" >/dev/null 2>&1 || true
  "$engine" network rm "$project" >/dev/null 2>&1 || true' EXIT

listening() { # container, program
  for _ in {1..240}; do
    if "$engine" logs "$1" 2>&1 | grep -q "$2 listening"; then return; fi
    sleep 0.5
  done
  echo "check: $1 does not listen" >&2
  "$engine" logs "$1" >&2
  return 1
}

if [ "${BUILD:-yes}" = yes ]; then
  "$engine" build --file docker/Dockerfile.server --tag relaax-server .
  "$engine" build --file docker/Dockerfile.environment --tag relaax-environment .
fi

"$engine" network create "$project" >/dev/null
"$engine" run --detach --name "$project-ps" --network "$project" relaax-server relaax-parameter-server \
  --config="$config" --bind=0.0.0.0:7000 --allow-anonymous --checkpoint-dir=/data/checkpoints >/dev/null
listening "$project-ps" relaax-parameter-server
"$engine" run --detach --name "$project-rlx" --network "$project" relaax-server relaax-rlx-server \
  --config="$config" --bind=0.0.0.0:7001 --parameter-server="$project-ps:7000" --allow-anonymous >/dev/null
listening "$project-rlx" relaax-rlx-server
"$engine" run --rm --network "$project" relaax-environment \
  /environments/OpenAI_Gym/main "$project-rlx:7001" CartPole-v1 4 --steps 4000

for name in rlx ps; do
  "$engine" stop -t 60 "$project-$name" >/dev/null
  code=$("$engine" inspect --format '{{.State.ExitCode}}' "$project-$name")
  [ "$code" = 0 ] || { echo "check: $name ended with exit code $code" >&2; exit 1; }
done
kept=$(mktemp -d)
"$engine" cp "$project-ps:/data/checkpoints" "$kept"
find "$kept" -name manifest.json | grep -q . || { echo "check: no checkpoint was written" >&2; exit 1; }
rm -r "$kept"
echo "check: both images work"
