package skill

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"glasshouse/fault"
)

// Limits of an untrusted folder.
const (
	maxFiles     = 1000
	maxFile      = 1 << 20
	maxFolder    = 16 << 20
	maxFolders   = 16 // nesting of folders
	maxPath      = 240
	maxNamesRead = 10_000
)

// A folder is the files of a skill, read once into memory: the files that are checked are the
// files that are installed.
type folder struct {
	files   map[string]file
	order   []string
	dropped []Dropped
	bytes   int
	seen    int
}

type file struct {
	text []byte
	exec bool
}

// leftOut are directories of tools, which are not part of a skill.
var leftOut = map[string]bool{".git": true, ".hg": true, ".svn": true, "node_modules": true, "__pycache__": true, ".venv": true, "venv": true, ".idea": true, ".vscode": true}

// readFolder reads a directory. It opens nothing outside and does not follow links.
func readFolder(dir string) (*folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.New(fault.Invalid, opImport, "", err)
	}
	defer root.Close()
	f := &folder{files: map[string]file{}}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fault.New(fault.Invalid, opImport, "", err)
		}
		if f.seen++; f.seen > maxNamesRead {
			return fault.Newf(fault.TooLarge, opImport, "", "the folder has more than %d names", maxNamesRead)
		}
		return f.take(root, name, d)
	})
	return f, err
}

func (f *folder) drop(name, format string, args ...any) {
	f.dropped = append(f.dropped, Dropped{What: strings.ToValidUTF8(name, "\uFFFD"), Why: fmt.Sprintf(format, args...)})
}

func (f *folder) take(root *os.Root, name string, d fs.DirEntry) error {
	base := path.Base(name)
	switch {
	case name == ".":
		return nil
	case !writable(name):
		f.drop(name, "the name is not portable")
		return skipDir(d)
	case d.IsDir() && leftOut[base]:
		f.drop(name+"/", "a tool's directory")
		return fs.SkipDir
	case d.IsDir() && strings.Count(name, "/") >= maxFolders:
		f.drop(name+"/", "nested deeper than %d folders", maxFolders)
		return fs.SkipDir
	case d.IsDir():
		return nil
	case d.Type()&fs.ModeSymlink != 0:
		f.drop(name, "a link; links are not followed")
		return nil
	case !d.Type().IsRegular():
		f.drop(name, "not a regular file")
		return nil
	}
	return f.read(root, name)
}

// writable reports whether a name is valid in manifests, texts and archives.
func writable(name string) bool {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == '\\' || r == '`' }
	return utf8.ValidString(name) && !strings.ContainsFunc(name, odd) && len(name) <= maxPath
}

func skipDir(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// read reads one file. The file may have been replaced since the directory was listed: read
// checks the opened file, and opening does not block on a FIFO.
func (f *folder) read(root *os.Root, name string) error {
	in, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		f.drop(name, "cannot be read: %v", err)
		return nil
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		f.drop(name, "not a regular file")
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case err != nil:
		return fault.New(fault.Invalid, opImport, "", err)
	case len(text) > maxFile:
		f.drop(name, "larger than %d bytes", maxFile)
		return nil
	case len(f.files) == maxFiles:
		return fault.Newf(fault.TooLarge, opImport, "", "the folder has more than %d files", maxFiles)
	}
	if f.bytes += len(text); f.bytes > maxFolder {
		return fault.Newf(fault.TooLarge, opImport, "", "the folder has more than %d bytes", maxFolder)
	}
	f.files[name] = file{text: text, exec: info.Mode()&0o111 != 0}
	f.order = append(f.order, name)
	return nil
}

// isText reports whether a file is text.
func (f file) isText() bool { return utf8.Valid(f.text) && bytes.IndexByte(f.text, 0) < 0 }
