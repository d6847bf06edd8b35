package secret

// A low work factor keeps tests fast.
func init() { scryptWork = 10 }

// RequestURL exports requestURL.
func RequestURL(address, at string) string { return requestURL(address, at) }
