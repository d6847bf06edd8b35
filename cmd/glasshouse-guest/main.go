// Command glasshouse-guest is process 1 of a virtual machine in which a jail runs: see package guest.
package main

import (
	"os"

	"glasshouse/jail/guest"
)

func main() { os.Exit(guest.Main(os.Args)) }
