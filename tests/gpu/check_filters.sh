#!/usr/bin/env bash
# check_filters.sh FOLDER: checks that every filter of a step of tests/gpu/session selects test cases. Otherwise a renamed
# test case would fail only on a machine with a card. FOLDER has the same programs for the CUDA stand-in.
set -euo pipefail
here=$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
kernels=$(sed -n 's/^ *local kernels="\(.*\)"$/\1/p' "$here/session_steps.sh")
checked=0
while read -r program filters; do
  filters=${filters//\"/}
  IFS=, read -ra each <<< "${filters//\$kernels/$kernels}"
  for filter in "${each[@]}"; do
    listed=$("$1/${program%_gpu}" --list-tests "$filter") || true  # Catch2 2 exits with their number
    if ! grep -qE '^[1-9][0-9]* (matching )?test cases?' <<< "$listed"; then
      echo "$program: no test case matches $filter" && exit 1
    fi
    checked=$((checked + 1))
  done
done < <(grep -oE 'tests_[a-z_]+ "[^"]+"' "$here/session_steps.sh")
[ "$checked" -gt 8 ]
echo "$checked filters select test cases"
