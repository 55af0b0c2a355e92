#!/usr/bin/env bash
# Count the pages that a web server's log says are missing, by HTTP alone: with curl and jq, without the client library.
#
# fila-cluster up                                   # in one terminal
# bash examples/http_missing_pages.sh access.log    # in another
#
# FILA_HTTP is the address of the dashboard: http://127.0.0.1:8555.
set -euo pipefail
http=${FILA_HTTP:-http://127.0.0.1:8555}
queue=missing-pages

post() {
  curl --fail-with-body --silent --show-error --json @- "$http/queues/$queue/$1"
}

found=$(mktemp)
fila-cluster queue create "$queue" >/dev/null
trap 'rm -f "$found"; fila-cluster queue delete "$queue" --force >/dev/null' EXIT

# Enqueue the path of each request that was answered with 404, up to 1,000 in one request. The fairness key is the client's address.
awk '$9 == 404 { print $1, $7 }' "$1" |
  jq --raw-input --slurp --compact-output \
    'split("\n") | map(select(. != "") | split(" ") | {fairness_key: .[0], payload: .[1]}) | _nwise(1000) | {messages: .}' |
  while read -r body; do
    post messages <<<"$body" | jq '.ids | length'
  done | awk '{ sum += $1 } END { print sum, "requests of missing pages" }'

# Take them, and ack what is counted. No message in a second is the end.
while answer=$(post receive <<<'{"max_messages": 100, "wait": 1}') && [ "$(jq '.deliveries | length' <<<"$answer")" -gt 0 ]; do
  jq --raw-output '.deliveries[].payload' <<<"$answer" >>"$found"
  jq '{deliveries: [.deliveries[] | {token, action: "ack"}]}' <<<"$answer" | post settle >/dev/null
done
sort "$found" | uniq --count | sort --reverse --numeric-sort | awk 'NR <= 3'
