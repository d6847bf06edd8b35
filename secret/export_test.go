package secret

// A guess at a passphrase is cheap in tests.
func init() { scryptWork = 10 }
