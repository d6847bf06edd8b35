package enforce

// The objects are committed, so a build of Glasshouse needs no C compiler.
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -tags linux -target amd64,arm64 -cflags "-O2 -g -Wall -Werror -mcpu=v3 -fdebug-compilation-dir=. -ffile-prefix-map=/usr/include=include" -type object -type network -type state -go-package enforce lsm lsm.bpf.c
