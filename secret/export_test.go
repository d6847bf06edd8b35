package secret

// A guess at a passphrase is cheap in tests.
func init() { scryptWork = 10 }

// RequestURL is where something is asked for.
func RequestURL(address, at string) string { return requestURL(address, at) }
