#!/usr/bin/env bash
# Regenerates the generated files and fails if one differs from the committed version. The check
# compares objects byte for byte, so it needs the compiler version that built them.
set -euo pipefail
cd "$(dirname "$0")/.."
sums() { git ls-files -z -- '*_bpfel.o' '*_bpfel.go' observe/syscalls/names.go observe/event/fields.go api/wire/eventfields.go | xargs -0 sha256sum; }
before=$(sums)
check() {
	if ! diff <(echo "$before") <(sums); then
		echo "generated files are out of date: run make generate"
		exit 1
	fi
}
go generate ./observe/event ./observe/syscalls
check
clang=14
# Install the compiler in CI only.
if ! command -v clang-$clang llvm-strip-$clang >/dev/null || [ ! -e /usr/include/bpf/bpf_helpers.h ]; then
	if [ -z "${CI:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "the eBPF programs are not checked: clang-$clang, llvm-$clang and libbpf-dev are missing"
		exit 0
	fi
	apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends clang-$clang llvm-$clang libbpf-dev linux-libc-dev >/dev/null
fi
go generate ./observe/kernel ./observe/network ./policy/enforce
check
