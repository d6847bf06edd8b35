package enforce

// older are the calls that only other processors still have.
var (
	older      map[int32]edit
	olderNames map[int32]string
)
