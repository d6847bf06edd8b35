module glasshouse/scripts/lint

go 1.26.3

require (
	golang.org/x/tools v0.52.0
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
	honnef.co/go/tools v0.8.2
)

require (
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
