package skill

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// An interpreter runs scripts of one language.
type interpreter struct {
	argv       []string // the program and its arguments before the script
	extensions []string
	shebangs   []string // program names in the first line
	image      string   // required image, if jails do not have the program
}

var interpreters = []interpreter{
	{[]string{"python3"}, []string{".py"}, []string{"python", "python3"}, ""},
	{[]string{"bash"}, []string{".bash"}, []string{"bash"}, ""},
	{[]string{"sh"}, []string{".sh"}, []string{"sh", "dash"}, ""},
	{[]string{"perl"}, []string{".pl"}, []string{"perl"}, ""},
	{[]string{"node"}, []string{".js", ".mjs", ".cjs"}, []string{"node", "nodejs"}, "node:22-slim"},
	{[]string{"ruby"}, []string{".rb"}, []string{"ruby"}, "ruby:3-slim"},
	{[]string{"php"}, []string{".php"}, []string{"php"}, "php:8-cli"},
}

// unrunnable are languages whose scripts cannot be run directly.
var unrunnable = map[string]string{
	".ts": "TypeScript", ".tsx": "TypeScript", ".go": "Go", ".rs": "Rust", ".java": "Java", ".lua": "Lua", ".r": "R",
	".ps1": "PowerShell", ".bat": "a batch file of Windows", ".cmd": "a batch file of Windows", ".applescript": "AppleScript", ".fish": "fish", ".zsh": "zsh",
}

var versioned = regexp.MustCompile(`^(python|ruby|php|perl|node)[0-9.]*$`)

// shebang returns the program in the first line of a script.
func shebang(text []byte) (program string, plain, has bool) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	words := strings.Fields(string(bytes.TrimPrefix(line, []byte("#!"))))
	if !bytes.HasPrefix(line, []byte("#!")) || len(words) == 0 {
		return "", false, false
	}
	if path.Base(words[0]) == "env" {
		words = words[1:]
	}
	if len(words) == 0 || strings.HasPrefix(words[0], "-") {
		return strings.Join(words, " "), false, true
	}
	program = path.Base(words[0])
	if m := versioned.FindStringSubmatch(program); m != nil {
		program = m[1]
	}
	return program, true, true
}

// runs returns the interpreter of a file, or the reason why it has none. Both are empty if the file is
// not a script.
func runs(name string, f file) (in *interpreter, why string) {
	ext := strings.ToLower(path.Ext(name))
	if !f.isText() {
		if f.exec || bytes.HasPrefix(f.text, []byte("\x7fELF")) {
			return nil, "binary executable, which cannot be reviewed"
		}
		return nil, ""
	}
	if program, plain, has := shebang(f.text); has {
		for i, in := range interpreters {
			if plain && slices.Contains(in.shebangs, program) {
				return &interpreters[i], ""
			}
		}
		return nil, fmt.Sprintf("unsupported interpreter %s", clip(program))
	}
	for i, in := range interpreters {
		if slices.Contains(in.extensions, ext) {
			return &interpreters[i], ""
		}
	}
	if language := unrunnable[ext]; language != "" {
		return nil, fmt.Sprintf("it is %s, which cannot be run directly: compile it, and write a manifest for it", language)
	}
	return nil, ""
}

// isLibrary reports whether a file only serves other scripts: a module of a Python package
// without side effects, or a test.
func (f *folder) isLibrary(name string) bool {
	base := path.Base(name)
	if path.Ext(name) != ".py" {
		return strings.Contains(base, ".test.") || strings.Contains(base, ".spec.")
	}
	if base == "__init__.py" || base == "conftest.py" || base == "setup.py" || strings.HasPrefix(base, "test_") || strings.HasSuffix(base, "_test.py") {
		return true
	}
	_, inPackage := f.files[path.Join(path.Dir(name), "__init__.py")]
	_, _, has := shebang(f.files[name].text)
	return inPackage && !has && !bytes.Contains(f.files[name].text, []byte("__main__"))
}
