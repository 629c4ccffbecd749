#!/usr/bin/env bash
# Trains on two and on four hosts of two ranks each and compares the checkpoints with that of one process. A host is a
# network namespace with a separate address and a PID namespace, so that its processes share memory with no other host.
#   several-hosts.sh TRAIN_CHECKPOINT LOCKSTEP_RUN
# An outer set of namespaces contains everything and ends with the test. Prints the number of bytes that one host has sent
# to the others. With ranks that share a host it must be smaller than with one host per rank.
set -euo pipefail

skip() {
  echo "skipped: $1"
  exit 0
}

run_host() { # NUMBER HOSTS BACKEND FOLDER: in the namespaces of the host
  local number=$1 hosts=$2 backend=$3 folder=$4 tries=0
  until [ -d "/proc/sys/net/ipv4/conf/eth0" ]; do # the outer namespace creates it
    [ $((tries += 1)) -lt 200 ]
    sleep 0.05
  done
  ip link set lo up
  ip address add "10.77.0.$((number + 1))/24" dev eth0
  ip link set eth0 up
  local separate=()
  [ "$backend" != separate ] || separate=(sh -c 'LOCKSTEP_HOST_ID=$RANK exec "$@"' sh)
  LOCKSTEP_STORE_TOKEN=several-hosts timeout -k 5 300 "$lockstep_run" --nproc-per-node 2 --nnodes "$hosts" \
    --node-rank "$number" --master-addr 10.77.0.1 --master-port 29511 "${separate[@]}" \
    "$train" normed $((2 * hosts)) 8 "${backend/separate/shm}" 1048576 389 1 "$folder/checkpoint" \
    > "$folder/output$number" 2>&1 || { tail -n 20 "$folder/output$number" && exit 1; }
  awk '/eth0:/ { print $10 }' /proc/net/dev > "$folder/sent$number"
}

run_hosts() { # HOSTS BACKEND FOLDER: in the outer namespaces
  local hosts=$1 backend=$2 folder=$3 number processes=() tries=0
  rm -f "$folder/checkpoint" "$folder"/sent*
  ((run += 1)) # interfaces of the previous run may still exist
  for ((number = 0; number < hosts; ++number)); do
    "${apart[@]}" "$BASH" "$0" "$train" "$lockstep_run" host "$number" "$hosts" "$backend" "$folder" &
    processes+=($!)
    until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do
      [ $((tries += 1)) -lt 200 ]
      sleep 0.05
    done
    ip link add "run$run-$number" type veth peer name eth0 netns $!
    ip link set "run$run-$number" master between up
  done
  local status=0
  for number in "${processes[@]}"; do wait "$number" || status=1; done
  [ $status = 0 ] || { echo "$hosts hosts, $backend: FAILED" && exit 1; }
  cmp "$folder/expected" "$folder/checkpoint"
  echo "$hosts hosts, $backend: the same bits; host 0 sent $(cat "$folder/sent0") bytes"
}

run_all() { # FOLDER
  local folder=$1 hosts shared separate
  run=0
  LOCKSTEP_CPU_DEVICES=1 "$train" normed 1 8 root 1048576 389 1 "$folder/expected" > "$folder/output"
  ip link add between type bridge || skip "this kernel makes no network bridges"
  ip link set between up
  for hosts in 2 4; do
    run_hosts $hosts separate "$folder"
    separate=$(cat "$folder/sent0")
    run_hosts $hosts gloo "$folder"
    run_hosts $hosts shm "$folder"
    shared=$(cat "$folder/sent0")
    [ $((10 * shared)) -lt $((8 * separate)) ] || { echo "expected less than 80 % of $separate bytes" && exit 1; }
  done
  echo "several hosts: passed"
}

own_proc() { # also if / is not a mount point, as in a chroot
  mount --make-private /proc
  mount -t proc proc /proc
}

train=$1 lockstep_run=$2
apart=(unshare --net --pid --mount --propagation unchanged --fork --kill-child)
case ${3:-} in
  host) own_proc && run_host "${@:4}" ;;
  outer) own_proc && run_all "$4" ;;
  try) own_proc ;;
  *)
    command -v ip > /dev/null || skip "there is no ip; install iproute2"
    command -v unshare > /dev/null || skip "there is no unshare; install util-linux"
    [ "$(id -u)" = 0 ] || apart=("${apart[@]}" --user --map-root-user)
    "${apart[@]}" "$BASH" "$0" "$train" "$lockstep_run" try 2> /dev/null || skip "this user may not make namespaces"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    timeout -k 5 500 "${apart[@]}" "$BASH" "$0" "$train" "$lockstep_run" outer "$folder"
    ;;
esac
