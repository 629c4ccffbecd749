#!/usr/bin/env bash
# Checks the reports of tests/gpu/session: with steps that pass, fail, hang and are skipped, and in several runs.
set -euo pipefail
here=$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
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
  step third "is last" 100 count
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
  [ $status = "$wanted" ] || { cat "$folder/output" "$report" && echo "status $status; expected $wanted" && exit 1; }
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

expect 1 --limit 50 # results are kept, and no step starts that might exceed the limit
holds 1 '^### first, passes: '
holds 1 '^### second, hangs: FAILED \(not done after 1 s\) '
holds 1 '^### second, skips: passed in part, or skipped '
holds 0 '^### third'
holds 1 '^So far: 1 passed, 1 in part or skipped, 2 failed, 1 left '

expect 1
holds 1 '^### third, is last: passed '
expect 1
holds 1 '^### third, is last: passed '
[ "$(wc -l < "$COUNTED")" = 1 ]

report=$folder/other.md
expect 3 --limit 50 third
holds 1 '^So far: 0 passed, 0 in part or skipped, 0 failed, 1 left '
expect 0 third
expect 2 --no-such-flag

echo libsuch-a-library.so.1 > "$folder/pack/needed"
expect 1 third
grep -q 'session: libsuch-a-library.so.1 is not found' "$folder/output"
echo "the session reports the result of every step"
