package envd

import (
	"fmt"
	"path"
	"strings"

	"connectrpc.com/connect"
)

// A location is a parsed path of a request. A relative path is relative to the user's home. An
// empty path is the default directory of the sandbox.
type location struct {
	path string
	home bool // path is relative to the user's home
}

func (v *visit) locate(p string) (location, error) {
	if p == "" {
		p = v.Dir
	}
	rest, tilde := strings.CutPrefix(p, "~")
	switch {
	case strings.ContainsRune(p, 0):
		return location{}, refuse(connect.CodeInvalidArgument, "the path contains a NUL byte")
	case tilde && rest != "" && rest[0] != '/':
		return location{}, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%.64q: ~user is not supported, only ~", p))
	}
	return location{path: rest, home: tilde || !path.IsAbs(p)}, nil
}

// expand returns p as an absolute path. It does not resolve symlinks or "..": jail.Files does.
func (v *visit) expand(p, home string) (string, error) {
	at, err := v.locate(p)
	if at.home {
		at.path = path.Join(home, at.path)
	}
	return at.path, err
}

// directory returns the working directory of a command in the form that init expects: init
// expands "~/" to the user's home.
func (v *visit) directory(p string) (string, error) {
	at, err := v.locate(p)
	if at.home {
		at.path = "~/" + strings.TrimLeft(at.path, "/")
	}
	return at.path, err
}
