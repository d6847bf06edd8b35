package envd

import (
	"fmt"
	"path"
	"strings"

	"connectrpc.com/connect"
)

// A place is what a path of a request names: what is not said from the root is in the
// home of the user, and no path is the directory of the sandbox.
type place struct {
	path string
	home bool // it is beneath the user's home
}

func (v *visit) place(p string) (place, error) {
	if p == "" {
		p = v.Dir
	}
	rest, tilde := strings.CutPrefix(p, "~")
	switch {
	case strings.ContainsRune(p, 0):
		return place{}, refuse(connect.CodeInvalidArgument, "a path has no NUL")
	case tilde && rest != "" && rest[0] != '/':
		return place{}, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%.64q: only the user's own home is known by ~", p))
	}
	return place{path: rest, home: tilde || !path.IsAbs(p)}, nil
}

// expand is the absolute path of a place. Where it leads to is for the jail's files to
// say.
func (v *visit) expand(p, home string) (string, error) {
	at, err := v.place(p)
	if at.home {
		at.path = path.Join(home, at.path)
	}
	return at.path, err
}

// directory is where a command is to run, in the words of init, who knows the user's
// home.
func (v *visit) directory(p string) (string, error) {
	at, err := v.place(p)
	if at.home {
		at.path = "~/" + strings.TrimLeft(at.path, "/")
	}
	return at.path, err
}
