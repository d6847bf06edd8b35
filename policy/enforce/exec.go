package enforce

import (
	"bytes"
	"encoding/binary"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/syntax"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// maxInterpreters is the number of nested script interpreters that the kernel allows
// (exec_binprm in fs/exec.c).
const maxInterpreters = 5

// A program is the result of resolving an exec.
type program struct {
	questions []policy.Question // all must be allowed
	exe       unix.Stat_t       // the file that the kernel will execute after resolving interpreters
	argv      []string          // the arguments of that file
	complete  bool              // argv is not truncated
}

// exec decides an execve or execveat.
func (w *watch) exec(c notify.Call, p *process) (verdict, error) {
	dirfd, name, argv, flags := int32(unix.AT_FDCWD), c.Args[0], c.Args[1], uint64(0)
	if c.Nr == calls.execveat {
		dirfd, name, argv, flags = int32(c.Args[0]), c.Args[1], c.Args[2], c.Args[4]
	}
	file, err := p.pathAt(name)
	if err != nil {
		return verdict{}, err
	}
	words, complete, err := p.stringArray(argv)
	if err != nil {
		return verdict{}, err
	}
	prog, err := w.program(p, dirfd, file, words, flags)
	if err != nil {
		return verdict{}, err
	}
	prog.complete = complete
	if !complete {
		for i := range prog.questions {
			prog.questions[i].Attributes["cut"] = "true"
		}
	}
	ok, err := w.allowed(c, p, prog.questions...)
	if err != nil {
		return verdict{}, err
	}
	if !ok {
		return refused, nil
	}
	return verdict{inspector: prog}, nil
}

// program resolves an exec through script interpreters.
func (w *watch) program(p *process, dirfd int32, file string, argv []string, flags uint64) (*program, error) {
	at, err := p.executable(dirfd, file, flags)
	if err != nil {
		return nil, err
	}
	defer func() { at.close() }()
	if len(argv) == 0 {
		argv = []string{""} // Linux replaces an empty argv in the same way since 5.18 (execve(2))
	}
	prog := &program{}
	shown := file // name under which it runs, as the kernel would pass it to an interpreter
	switch {
	case file == "" || dirfd != unix.AT_FDCWD && !path.IsAbs(file):
		shown = strings.TrimSuffix("/dev/fd/"+fdNumber(dirfd)+"/"+file, "/")
	}
	for range maxInterpreters + 1 {
		if err := w.addQuestions(p, prog, at, shown, argv); err != nil {
			return nil, err
		}
		interpreter, option, ok := at.script()
		if !ok {
			prog.exe, prog.argv = at.stat, argv
			return prog, nil
		}
		rest := append([]string{shown}, argv[min(1, len(argv)):]...)
		argv = []string{interpreter}
		if option != "" {
			argv = append(argv, option)
		}
		argv, shown = append(argv, rest...), interpreter
		next, err := p.executable(unix.AT_FDCWD, interpreter, 0)
		if err != nil {
			return nil, err
		}
		at.close()
		at = next
	}
	return nil, unix.ELOOP
}

// executable opens the file of a program. The error is the errno that the kernel would return.
func (p *process) executable(dirfd int32, file string, flags uint64) (*target, error) {
	if file == "" && flags&unix.AT_EMPTY_PATH != 0 {
		fd, err := p.getfd(dirfd)
		if err != nil {
			return nil, unix.EBADF
		}
		at := &target{fd: fd}
		return at, at.load()
	}
	at, err := p.locate(dirfd, file, flags&unix.AT_SYMLINK_NOFOLLOW == 0)
	if err == nil && !at.exists() {
		err = unix.ENOENT
	}
	return at, err
}

// contents returns the first bytes of a file.
func (at *target) contents(n int) []byte {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	b := make([]byte, n)
	n, err = unix.Pread(fd, b, 0)
	if err != nil {
		return nil
	}
	return b[:n]
}

// script reads the first line of a file as the kernel does.
func (at *target) script() (interpreter, option string, ok bool) {
	if at.kind() != unix.S_IFREG {
		return "", "", false
	}
	line, ok := bytes.CutPrefix(at.contents(256), []byte("#!"))
	if !ok {
		return "", "", false
	}
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end]
	}
	if end := bytes.IndexByte(line, 0); end >= 0 {
		line = line[:end]
	}
	text := strings.Trim(string(line), " \t")
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		interpreter, option = text[:i], strings.Trim(text[i:], " \t")
	} else {
		interpreter = text
	}
	return interpreter, option, interpreter != ""
}

// addQuestions adds the questions about one program: the name it is called by, and the name of
// its file if that differs.
func (w *watch) addQuestions(p *process, prog *program, at *target, file string, argv []string) error {
	dir, err := p.baseDir(unix.AT_FDCWD)
	if err != nil {
		return err
	}
	attributes := func() map[string]string {
		return map[string]string{"observed": "true", "argv0": argv[0], "exe": at.path, "file": file, "cwd": dir}
	}
	add := func(words ...string) {
		line := commandLine(words)
		for _, q := range prog.questions {
			if q.Resource == line {
				return
			}
		}
		prog.questions = append(prog.questions, policy.Question{Subject: w.Subject, Action: policy.ActionRun, Resource: line, Attributes: attributes()})
	}
	rest := argv[1:]
	names := []string{path.Base(at.path)}
	if !strings.HasPrefix(file, "/dev/fd/") {
		// A link outside of the system path can have any name, so names count only up to the
		// first one in the system path.
		names = nil
		for _, hop := range p.linkChain(unix.AT_FDCWD, file) {
			names = append(names, path.Base(hop))
			if inPath(path.Dir(hop)) {
				break
			}
		}
	}
	names = append(names, w.image.copyNames(p, at)...)
	own := path.Base(argv[0])
	switch {
	case len(names) > 0 && names[0] == own && inPath(path.Dir(at.path)):
		add(append([]string{own}, rest...)...)
	case strings.Contains(argv[0], "/"):
		add(argv...)
	default: // argv[0] can have any value
		add(append([]string{file}, rest...)...)
		if own != path.Base(file) {
			add(argv...)
		}
	}
	for _, n := range names {
		if n != own {
			add(append([]string{n}, rest...)...)
		}
	}
	if isLoader(names) {
		if program := loaded(rest); len(program) > 0 {
			next, err := p.executable(unix.AT_FDCWD, program[0], 0)
			if err != nil {
				add(program...) // the loader searches its own directories
				return nil
			}
			defer next.close()
			return w.addQuestions(p, prog, next, program[0], program)
		}
	}
	return nil
}

// commandLine quotes words for a shell.
func commandLine(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		q, err := syntax.Quote(word, syntax.LangBash)
		if err != nil {
			q = strconv.QuoteToASCII(word) // it contains bytes that cannot be quoted for a shell
		}
		quoted[i] = q
	}
	return strings.Join(quoted, " ")
}

// systemPath lists the program directories of an image. Links there are part of the image, so
// their names identify programs.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func inPath(dir string) bool {
	for _, d := range systemPath {
		if d == dir {
			return true
		}
	}
	return false
}

// isLoader reports whether a program is the dynamic loader (ld.so(8)), which runs another
// program.
func isLoader(names []string) bool {
	for _, n := range names {
		if strings.HasPrefix(n, "ld-linux") || strings.HasPrefix(n, "ld-musl") || n == "ld.so" || strings.HasPrefix(n, "ld64.so") ||
			strings.HasPrefix(n, "ld-2.") {
			return true
		}
	}
	return false
}

// loaderTakes lists the options of the loader that take an argument.
var loaderTakes = map[string]bool{
	"--library-path": true, "--inhibit-rpath": true, "--audit": true, "--preload": true, "--argv0": true,
	"--glibc-hwcaps-prepend": true, "--glibc-hwcaps-mask": true,
}

// loaded returns the command line that the arguments of a loader contain.
func loaded(args []string) []string {
	for len(args) > 0 {
		switch {
		case args[0] == "--":
			return args[1:]
		case loaderTakes[args[0]]:
			args = args[min(2, len(args)):]
		case strings.HasPrefix(args[0], "--"):
			args = args[1:]
		default:
			return args
		}
	}
	return nil
}

func nativeUint64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
