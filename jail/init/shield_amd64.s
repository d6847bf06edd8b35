#include "textflag.h"

// The kernel calls a handler with the signal in DI, a siginfo in SI and the
// context in DX.

// func(signal, info, context)
TEXT handleFault<>(SB), NOSPLIT|NOFRAME, $0
	MOVL 8(SI), AX // si_code: positive from the kernel, else sent
	CMPL AX, $0
	JLE  sent
	MOVQ ·faultHandler(SB), AX
	JMP  AX

sent:
	RET

// func(signal, info, context)
TEXT handleNothing<>(SB), NOSPLIT|NOFRAME, $0
	RET

DATA ·handleFaultPC(SB)/8, $handleFault<>(SB)
GLOBL ·handleFaultPC(SB), RODATA, $8

DATA ·handleNothingPC(SB)/8, $handleNothing<>(SB)
GLOBL ·handleNothingPC(SB), RODATA, $8
