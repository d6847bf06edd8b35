// Pack writes the files of a directory into an archive, docs.tar.zst, from which the daemon serves
// the documentation. The same files give the same archive.
package main

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack DIRECTORY ARCHIVE")
		os.Exit(2)
	}
	if err := pack(os.DirFS(os.Args[1]), os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(dir fs.FS, archive string) error {
	out, err := os.Create(archive + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(archive + ".new")
	defer out.Close()
	// One encoder: the blocks of several depend on their timing.
	z, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	// WalkDir visits files in lexical order.
	err = fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644}); err != nil {
			return err
		}
		_, err = t.Write(text)
		return err
	})
	for _, close := range []func() error{t.Close, z.Close, out.Close} {
		if err == nil {
			err = close()
		}
	}
	if err != nil {
		return err
	}
	return os.Rename(archive+".new", archive)
}
