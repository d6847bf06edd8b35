package backendtest

import (
	"io"
	"testing"

	"glasshouse/jail"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/control"
)

// openFiles opens the files of a jail that does not run, as jail.Manager does.
func (s *suite) openFiles(t *testing.T, p jail.Plan) jail.Files {
	t.Helper()
	if server, ok := s.backend.(jail.FileServer); ok {
		socket, done, err := server.ServeFiles(t.Context(), p)
		if err != nil {
			t.Fatalf("ServeFiles: %v", err)
		}
		return served{control.Dial(socket), done}
	}
	dir, unmount, err := s.backend.Mount(t.Context(), p)
	if err != nil {
		t.Fatalf("Mount: %v", err)
	}
	root, err := jailfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return mounted{root, unmount}
}

// closeFiles closes the files of a jail.
func (s *suite) closeFiles(t *testing.T, files jail.Files, p jail.Plan) {
	t.Helper()
	if err := files.Close(); err != nil {
		t.Fatalf("close the files: %v", err)
	}
	s.readingLeavesNothing(t, p)
}

// readingLeavesNothing checks that nothing is left of a mount of a stopped jail's files. A machine that
// serves files may be kept, which is tested with the backend.
func (s *suite) readingLeavesNothing(t *testing.T, p jail.Plan) {
	t.Helper()
	if _, kept := s.backend.(jail.FileServer); !kept {
		mustNotLeak(t, p)
	}
}

func readFile(t *testing.T, files jail.Files, name string) (string, error) {
	t.Helper()
	r, _, err := files.Read(t.Context(), name, 0, -1)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

// served are files that a backend serves.
type served struct {
	*control.Client
	close func() error
}

func (f served) Close() error { return f.close() }

// mounted are files on the host.
type mounted struct {
	*jailfs.Root
	unmount func() error
}

func (f mounted) Close() error {
	if err := f.Root.Close(); err != nil {
		return err
	}
	return f.unmount()
}
