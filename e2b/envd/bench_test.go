package envd_test

import (
	"context"
	"io"
	"testing"

	"glasshouse/jail"
	"glasshouse/jail/init/control"
)

// BenchmarkExec measures a command with the Connect protocol and with jail.Manager directly.
func BenchmarkExec(b *testing.B) {
	w := newWorld(b)
	for codec := range codecs {
		b.Run("connect/"+codec, func(b *testing.B) {
			for b.Loop() {
				c, err := w.start(sh("echo hi"), codec)
				if err != nil {
					b.Fatal(err)
				}
				if r, err := c.wait(); err != nil || r.out != "hi\n" {
					b.Fatalf("%+v, %v", r, err)
				}
			}
		})
	}
	for name, argv := range map[string][]string{"bash": {"/bin/bash", "-l", "-c", "echo hi"}, "true": {"/bin/true"}} {
		b.Run("init/"+name, func(b *testing.B) {
			for b.Loop() {
				s, _, err := w.jails.Exec(context.Background(), w.jail, jail.ExecRequest{Argv: argv, User: "user"}, &control.AttachOptions{Lossless: true})
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = s.Next()
				}
				if err != io.EOF {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}
