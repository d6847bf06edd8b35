#!/usr/bin/env bash
# Benchmarks, each side by side with its peers in one run. Figures depend on the
# machine; ratios less. Nothing here fails for being slow.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: bench.sh DATA_DIR}
export PATH="$DATA/tools/bin:$PATH"
echo "$(uname -srm), $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg), runc $(runc --version | sed -n '1s/.* //p')"
scripts/peers.sh "$DATA/tools/peers"
export GLASSHOUSE_DATA=$DATA GLASSHOUSE_PEERS=$DATA/tools/peers
go test -tags bench -v -count=1 -timeout 30m -run '^TestBench' ./test
# Capabilities: the language beside starlark-go, types, modules, sandboxes of runc and gVisor.
go test -count=1 -run '^$' -bench '^Benchmark(Fib|Call|Reduce)$' ./rtfs
go test -count=1 -run '^$' -bench '^BenchmarkCheck$' ./schema
go test -count=1 -run '^$' -bench '^BenchmarkWarmCall$' ./engine/wasm
go test -count=1 -run '^$' -bench '^Benchmark(Cold|Warm)$' ./engine/jailed
# A command in a sandbox, by the protocol of E2B and without it.
go test -count=1 -run '^$' -bench '^BenchmarkExec$' ./e2b/envd
