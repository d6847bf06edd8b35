package jailfs_test

import (
	"testing"

	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/fs/jailfstest"
)

func TestContract(t *testing.T) {
	t.Run("ByKernel", func(t *testing.T) { contract(t, func(*jailfs.Root) {}) })
	t.Run("ByWalking", func(t *testing.T) { contract(t, jailfs.WithoutOpenat2) })
}

func contract(t *testing.T, prepare func(*jailfs.Root)) {
	jailfstest.Run(t, func(t *testing.T) (jailfstest.Files, string, string) {
		dir := t.TempDir()
		r := open(t, dir)
		prepare(r)
		return r, dir, ""
	})
}

func open(t testing.TB, dir string) *jailfs.Root {
	t.Helper()
	r, err := jailfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}
