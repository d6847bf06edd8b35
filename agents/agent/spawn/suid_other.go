//go:build !amd64

package spawn

var moreModeCalls []modeCall // only amd64 has the older calls
