#!/bin/sh
# script_arguments.sh SOURCE: scripts print one line about an argument that they do not know, end with status 2 and write
# no file; --help explains what a user may start.
set -eu
source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

refuses() { # COMMAND...: in an empty folder
  status=0
  output=$("$@" 2>&1) || status=$?
  [ $status = 2 ] || { echo "$*: status $status; expected 2: $output" && exit 1; }
  [ "$(echo "$output" | wc -l)" = 1 ] || { echo "$*: more than one line: $output" && exit 1; }
  [ -z "$(ls -A)" ] || { echo "$*: left $(ls -A)" && exit 1; }
}
explains() { # COMMAND...
  output=$("$@") || { echo "$*: failed" && exit 1; }
  [ "$(echo "$output" | wc -l)" -gt 2 ] || { echo "$*: no explanation: $output" && exit 1; }
}

for argument in --fast fast; do
  refuses "$source/quickstart" $argument
  refuses "$source/.ci/run" $argument
done
refuses "$source/.ci/run" full --fast
refuses "$source/check" --fast
refuses "$source/check" fast
explains "$source/quickstart" --help
explains "$source/check" --help
# With CDPATH, cd selects another folder of the same name, and prints its path.
name=$(basename "$source")
mkdir "$folder/$name"
(
  cd "$(dirname "$source")"
  export CDPATH="$folder"
  [ "$("$name/quickstart" --help)" = "$("./$name/quickstart" --help)" ] || { echo "quickstart follows CDPATH" && exit 1; }
  explains "$name/check" --help
)
rmdir "$folder/$name"
if command -v perl > /dev/null; then
  refuses "$source/.ci/voice" --fast
fi
if command -v python3 > /dev/null; then
  refuses "$source/.ci/tidy"
  refuses "$source/.ci/tidy" --fast
  refuses "$source/.ci/tidy" build --fast
  refuses "$source/.ci/tidy" build --since
  explains "$source/.ci/tidy" --help
fi
