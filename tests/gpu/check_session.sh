#!/usr/bin/env bash
# That tests/gpu/session writes down what happened: with steps that pass, fail, hang and are skipped, and in parts.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/pack/bin" "$folder/pack/lib"
cp "$here/session" "$folder/pack"
: > "$folder/pack/needed"
echo abc123 > "$folder/pack/commit"
cat > "$folder/pack/session_steps.sh" << 'STEPS'
all_steps() {
  step first passes 5 say hello
  step first fails 5 break_off
  step second hangs 1 sleep 60
  step second skips 5 say "skipped: there is no such thing"
  step third "comes last" 100 count
}
say() { echo "$*"; }
break_off() { say almost; false; say beyond; }
count() { echo x >> "$COUNTED"; }
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  "$@"
fi
STEPS
export COUNTED=$folder/counted
report=$folder/report.md

expect() { # STATUS FLAGS...
  local wanted=$1 status=0
  shift
  "$folder/pack/session" run --report "$report" "$@" > "$folder/output" 2>&1 || status=$?
  [ $status = "$wanted" ] || { cat "$folder/output" "$report" && echo "status $status, not $wanted" && exit 1; }
}
holds() { # TIMES PATTERN: lines of the report
  [ "$(grep -cE "$2" "$report")" = "$1" ] || { cat "$report" && echo "not $1 times: $2" && exit 1; }
}

expect 1 first
holds 1 '^# A session on one card, 20'
holds 1 '^Lockstep abc123$'
holds 1 '^### first, passes: passed \([0-9]+ s\)$'
holds 1 '^hello$'
holds 1 '^### first, fails: FAILED \(status 1\) '
holds 1 '^almost$'
holds 0 '^beyond$'
holds 0 '^### second'

expect 1 --limit 50 # what is there stays, and nothing is begun that might take too long
holds 1 '^### first, passes: '
holds 1 '^### second, hangs: FAILED \(not done after 1 s\) '
holds 1 '^### second, skips: passed in part, or skipped '
holds 0 '^### third'
holds 1 '^So far: 1 passed, 1 in part or skipped, 2 failed, 1 left '

expect 1
holds 1 '^### third, comes last: passed '
expect 1
holds 1 '^### third, comes last: passed '
[ "$(wc -l < "$COUNTED")" = 1 ]

report=$folder/other.md
expect 3 --limit 50 third
holds 1 '^So far: 0 passed, 0 in part or skipped, 0 failed, 1 left '
expect 0 third
expect 2 --no-such-flag

echo libsuch-a-library.so.1 > "$folder/pack/needed"
expect 1 third
grep -q 'session: libsuch-a-library.so.1 is neither in LD_LIBRARY_PATH' "$folder/output"
echo "the session writes down what happened"
