#!/usr/bin/env bash
# Makes the generated files anew and fails if that changes any: what is
# committed is what the sources say. The compiler that made the objects must make
# them again, byte by byte, so another one is no use.
set -euo pipefail
cd "$(dirname "$0")/.."
clang=14
# A compiler is asked for by its version; elsewhere it is nobody's business.
if ! command -v clang-$clang llvm-strip-$clang >/dev/null || [ ! -e /usr/include/bpf/bpf_helpers.h ]; then
	if [ -z "${CI:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "generated files are not checked: clang-$clang, llvm-$clang and libbpf-dev are not there"
		exit 0
	fi
	apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends clang-$clang llvm-$clang libbpf-dev linux-libc-dev >/dev/null
fi
sums() { git ls-files -z -- '*_bpfel.o' '*_bpfel.go' observe/syscalls/names.go | xargs -0 sha256sum; }
before=$(sums)
go generate ./observe/... ./enforce
if ! diff <(echo "$before") <(sums); then
	echo "generated files differ from what is committed: run make generate"
	exit 1
fi
