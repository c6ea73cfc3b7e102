#!/usr/bin/env bash
# Serves one real vLLM engine on a CPU, in the foreground; installs it on first use. Ready when /health answers 200,
# about 20 seconds later.
#
# usage: e2e/kits/vllm/up.sh PORT [EVENTS_PORT REPLAY_PORT] [-- more vLLM arguments]
#   EVENTS_PORT, REPLAY_PORT    publish KV-cache events by ZMQ on these ports; without them there are none
# environment: NAME             engine name in the topic of its events, default 127.0.0.1:PORT
#              MODELS           served model names, default tiny-llama
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 1 ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
port=$1
shift
events=()
if [ $# -ge 2 ] && [ "$1" != -- ]; then
  topic="kv@${NAME:-127.0.0.1:$port}@${MODELS:-tiny-llama}"
  events=(--kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:$1\",
    \"replay_endpoint\": \"tcp://*:$2\", \"topic\": \"$topic\"}")
  shift 2
fi
if [ "${1:-}" = -- ]; then
  shift
fi

home=$("$here/install.sh" | tail -n 1)
# No look-ups on the network, no usage statistics; a fixed seed makes block hashes the same on every engine.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PYTHONHASHSEED=0
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}" OMP_NUM_THREADS=1 VLLM_HOST_IP=127.0.0.1
read -ra models <<<"${MODELS:-tiny-llama}"
exec "$home/venv/bin/vllm" serve "$home/tiny-llama" --served-model-name "${models[@]}" \
  --host 127.0.0.1 --port "$port" --dtype float32 --enforce-eager --max-model-len 2048 \
  --block-size 32 --num-gpu-blocks-override 256 --max-num-seqs 8 \
  --enable-prefix-caching --prefix-caching-hash-algo sha256_cbor \
  --enable-prompt-tokens-details --enable-request-id-headers --enable-server-load-tracking \
  --scheduling-policy priority --enable-auto-tool-choice --tool-call-parser hermes "${events[@]}" "$@"
