#!/usr/bin/env bash
# Installs the current OpenAI and Anthropic Python SDKs, unmodified, into a virtual environment in the cache. Does nothing
# when they are there already.
#
# usage: e2e/kits/sdk/install.sh     prints the environment's python as its last line
# environment: TOKENWEIR_CACHE       cache folder, default ~/.cache/tokenweir
#              PYTHON                Python 3.10 to 3.14, default python3
#
# Every package is pinned by version and digest in requirements.txt: a changed upload is refused.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${TOKENWEIR_CACHE:-$HOME/.cache/tokenweir}
python=${PYTHON:-python3}
digest=$(cat "$here/install.sh" "$here/requirements.txt" | sha256sum | cut -c1-12)
home=$cache/sdk-$digest

say() { echo "sdk kit: $*" >&2; }

if [ -e "$home/complete" ]; then
  echo "$home/venv/bin/python"
  exit 0
fi

for tool in "$python" sha256sum flock; do
  if ! command -v "$tool" >/dev/null; then
    say "$tool is missing: install Python 3.10 or newer, coreutils and util-linux"
    exit 1
  fi
done
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  say "$("$python" --version) is too old: the SDKs want 3.10 or newer; set PYTHON"
  exit 1
fi

# Two runs at once would write into the same folder.
mkdir -p "$cache"
exec 9>"$cache/.sdk.lock"
flock 9
if [ -e "$home/complete" ]; then
  echo "$home/venv/bin/python"
  exit 0
fi

# A virtual environment holds its own path, so it is made where it stays; `complete` says that it is whole.
rm -rf "$home"
mkdir -p "$home"
say "installing $(tr '\n' ' ' <"$here/requirements.in")into $home (about 110 MB)"
"$python" -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
  --requirement "$here/requirements.txt" >&2
"$home/venv/bin/python" -c 'import anthropic, openai; print("sdk kit: openai", openai.__version__, "anthropic",
  anthropic.__version__)' >&2
touch "$home/complete"
echo "$home/venv/bin/python"
