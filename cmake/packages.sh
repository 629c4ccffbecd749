# Sourced by quickstart, check and .ci/run: packages for building and for tests, their installation, and how builds and
# tests are started.
build_packages=(g++ cmake ninja-build libdnnl-dev libfmt-dev zlib1g-dev libsodium-dev libxxhash-dev libdlpack-dev libsleef-dev
  nlohmann-json3-dev libcli11-dev libjpeg-dev libpng-dev libgif-dev catch2 libgloo-dev libopenmpi-dev openmpi-bin)
test_packages=(iproute2 mold dpkg-dev file pkg-config)

# install_packages NAME...: installs those that are missing; requires no rights if none is.
install_packages() {
  local missing=() package as_root=()
  if ! command -v apt-get > /dev/null; then
    echo "$0: apt-get not found; install the equivalents of: $*" >&2
    return 0
  fi
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null; then
      echo "$0: packages are missing and there is no sudo; as root, run: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
    [ -t 0 ] || as_root+=(-n) # without a terminal, sudo must not ask for a password
  fi
  echo "Installing ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}"; } \
    < /dev/null > "$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "$0: apt-get could not install ${missing[*]} (the whole log: $log)" >&2
    return 1
  fi
  rm -f "$log"
}

# The flag for the number of tests that run at once: more than cores, because tests often wait.
test_jobs() {
  local jobs=$((3 * $(nproc)))
  echo "-j$((jobs < 24 ? jobs : 24))"
}

# build PRESET [TARGET...]: configures and builds; shows progress on a terminal only.
build() {
  local preset=$1 targets=()
  shift
  [ $# -eq 0 ] || targets=(--target "$@")
  mkdir -p "build/$preset"
  local log=build/$preset/configure.log
  if ! cmake --preset "$preset" > "$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
  grep -o 'Lockstep: .*' "$log" || true
  if [ -t 1 ]; then
    cmake --build --preset "$preset" "${targets[@]}"
  else
    cmake --build --preset "$preset" "${targets[@]}" -- --quiet
  fi
}
