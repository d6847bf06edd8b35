#!/usr/bin/env bash
# Benchmarks. Each compares Glasshouse with similar programs in the same run, because absolute
# figures depend on the machine more than ratios. A slow result is not a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${1:?usage: bench.sh DATA_DIR}
export PATH="$DATA/tools/bin:$PATH"
echo "$(uname -srm), $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg), runc $(runc --version | sed -n '1s/.* //p')"
scripts/peers.sh "$DATA/tools/peers"
export GLASSHOUSE_DATA=$DATA GLASSHOUSE_PEERS=$DATA/tools/peers
go test -tags bench -v -count=1 -timeout 30m -run '^TestBench' ./test
# Capabilities: the language compared with starlark-go, types, modules, runc and gVisor sandboxes.
go test -count=1 -run '^$' -bench '^Benchmark(Fib|Call|Reduce)$' ./capability/rtfs
go test -count=1 -run '^$' -bench '^BenchmarkCheck$' ./capability/schema
go test -count=1 -run '^$' -bench '^BenchmarkWarmCall$' ./capability/engine/wasm
go test -count=1 -run '^$' -bench '^Benchmark(Cold|Warm)$' ./capability/engine/jailed
# A command in a sandbox, with and without the E2B protocol.
go test -count=1 -run '^$' -bench '^BenchmarkExec$' ./e2b/envd
