package bundle

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

const (
	maxName    = 512 // bytes of a path
	maxElement = 200 // bytes of one element: filesystems allow 255, and temporary names are longer
	maxDepth   = 16  // elements
)

// checkName rejects invalid paths. A valid path is in its canonical form: relative, clean,
// with slashes, and printable.
func checkName(name string) error {
	switch {
	case name == "":
		return refuse(BadName, "", "an empty name")
	case len(name) > maxName:
		return refuse(LongName, "", "%.40q… has %d bytes, more than %d", name, len(name), maxName)
	case !utf8.ValidString(name):
		return refuse(BadName, "", "%q is not UTF-8", name)
	case name[0] == '/':
		return refuse(Absolute, "", "%q", name)
	case len(name) > 1 && name[1] == ':':
		return refuse(Absolute, "", "%q names a drive", name)
	}
	elements := strings.Split(name, "/")
	if len(elements) > maxDepth {
		return refuse(LongName, "", "%.40q… is %d deep, more than %d", name, len(elements), maxDepth)
	}
	for _, e := range elements {
		if err := checkElement(name, e); err != nil {
			return err
		}
	}
	return nil
}

func checkElement(name, e string) error {
	switch {
	case e == "..":
		return refuse(Traversal, "", "%q is outside the bundle", name)
	case e == "" || e == ".":
		return refuse(BadName, "", "%q has an empty element", name)
	case len(e) > maxElement:
		return refuse(LongName, "", "%.40q… has an element of %d bytes, more than %d", name, len(e), maxElement)
	case strings.HasSuffix(e, ".") || strings.HasPrefix(e, " ") || strings.HasSuffix(e, " "):
		return refuse(BadName, "", "%q has an element that ends with a space or dot", name)
	}
	for _, r := range e {
		// Control characters, invisible characters and bidirectional overrides are not
		// printable.
		if r == '\\' || r == utf8.RuneError || !unicode.IsPrint(r) {
			return refuse(BadName, "", "%q contains %U", name, r)
		}
	}
	return nil
}

// folded returns the form of a name that case-insensitive and normalizing filesystems compare.
func folded(name string) string { return norm.NFKC.String(cases.Fold().String(norm.NFKC.String(name))) }

// names collects the files and directories of a bundle.
type names struct {
	kind  map[string]bool   // by name: true for a file
	first map[string]string // name by folded name
}

func newNames() *names { return &names{kind: map[string]bool{}, first: map[string]string{}} }

// add adds a valid name and its parent directories.
func (n *names) add(name string, file bool) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if err := n.put(dir, false); err != nil {
			return err
		}
	}
	return n.put(name, file)
}

func (n *names) put(name string, file bool) error {
	if was, ok := n.kind[name]; ok {
		if was || file {
			return refuse(Duplicate, "", "%q occurs twice", name)
		}
		return nil // directories may repeat
	}
	fold := folded(name)
	if other, ok := n.first[fold]; ok {
		return refuse(Collision, "", "%q and %q are the same name on some filesystems", other, name)
	}
	n.kind[name], n.first[fold] = file, name
	if len(n.kind) > maxFiles {
		return refuse(TooMany, "", "more than %d files and directories", maxFiles)
	}
	return nil
}
