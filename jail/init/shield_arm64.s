#include "textflag.h"

// The kernel calls a handler with the signal in R0, a siginfo in R1 and the
// context in R2.

// func(signal, info, context)
TEXT handleFault<>(SB), NOSPLIT|NOFRAME, $0
	MOVW 8(R1), R3 // si_code: positive from the kernel, else sent
	CMPW $0, R3
	BLE  sent
	MOVD ·faultHandler(SB), R3
	JMP  (R3)

sent:
	RET

// func(signal, info, context)
TEXT handleNothing<>(SB), NOSPLIT|NOFRAME, $0
	RET

DATA ·handleFaultPC(SB)/8, $handleFault<>(SB)
GLOBL ·handleFaultPC(SB), RODATA, $8

DATA ·handleNothingPC(SB)/8, $handleNothing<>(SB)
GLOBL ·handleNothingPC(SB), RODATA, $8
