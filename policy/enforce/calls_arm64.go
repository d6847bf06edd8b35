package enforce

// legacyCalls are the calls that only amd64 has.
var (
	legacyCalls map[int32]edit
	legacyNames map[int32]string
)
