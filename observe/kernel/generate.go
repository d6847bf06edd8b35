package kernel

// The objects are committed, so that building Glasshouse needs no BPF compiler. make generate
// must reproduce them without differences.
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -cflags "-O2 -g -Wall -Werror -mcpu=v3 -fdebug-compilation-dir=. -ffile-prefix-map=/usr/include=include" -type record -type ring -type slot -type ctl -type call -go-package kernel trace trace.bpf.c
