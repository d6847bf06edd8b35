package kernel

// The objects are committed: whoever builds Glasshouse needs no compiler for
// them. What the flags say, make generate says again without a difference.
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -cflags "-O2 -g -Wall -Werror -mcpu=v3 -fdebug-compilation-dir=. -ffile-prefix-map=/usr/include=include" -type record -type ring -type slot -type ctl -type call -go-package kernel trace trace.bpf.c
