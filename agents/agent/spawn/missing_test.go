package spawn_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/agents/agent/spawn"
	"glasshouse/fault"
)

func TestUnusableBubblewrapIsUnsupported(t *testing.T) {
	for name, script := range map[string]string{
		"not installed":             "",
		"another program":           "#!/bin/sh\necho hello\n",
		"too old":                   "#!/bin/sh\necho bubblewrap 0.4.1\n",
		"exits with an error":       "#!/bin/sh\ntest \"$1\" = --version && echo bubblewrap 0.9.0 && exit\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n",
		"does nothing":              "#!/bin/sh\ntest \"$1\" = --version && echo bubblewrap 0.9.0\nexit 0\n",
		"runs the agent unconfined": "#!/bin/sh\ntest \"$1\" = --version && echo bubblewrap 0.9.0 && exit\nshift 3; exec \"$@\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			noLeaks(t, dir)
			bin := filepath.Join(dir, "bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			if script != "" {
				if err := os.WriteFile(filepath.Join(bin, "bwrap"), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cfg := config(t, dir)
			t.Setenv("PATH", bin)
			s := open(t, "bwrap", cfg)
			socket := filepath.Join(dir, "gateway.sock")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			trace := filepath.Join(dir, "ran")
			err = s.Probe(t.Context())
			p, started := s.Start(t.Context(), spawn.Start{Argv: []string{"/bin/sh", "-c", "echo > " + trace}, Socket: socket})
			for what, err := range map[string]error{"Probe": err, "Start": started} {
				if !errors.Is(err, fault.Unsupported) {
					t.Errorf("%s = %v, want unsupported", what, err)
				}
				remedy := fault.RemedyOf(err)
				for _, must := range []string{"apt", "dnf", "pacman", "zypper"} {
					if !strings.Contains(remedy, must) {
						t.Errorf("remedy of %s does not contain %s: %q", what, must, remedy)
					}
				}
			}
			if p != nil {
				t.Error("Start returned a process")
				p.Kill()
				p.Wait()
			}
			if _, err := os.Stat(trace); err == nil {
				t.Error("the agent ran outside of bubblewrap")
			}
			if script != "" && strings.Contains(name, "exits") && !strings.Contains(started.Error(), "No permissions to create new namespace") {
				t.Errorf("error lacks the message of bubblewrap: %v", started)
			}
		})
	}
}

func TestMissingGlasshouseAgentIsUnsupported(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			dir := tempDir(t)
			cfg := config(t, dir)
			cfg.Agent = filepath.Join(dir, "none")
			s := open(t, kind, cfg)
			_, err := s.Start(t.Context(), spawn.Start{Argv: []string{"true"}, Socket: "/dev/null"})
			if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
				t.Errorf("Start = %v, want unsupported with a remedy", err)
			}
			if err := s.Probe(t.Context()); !errors.Is(err, fault.Unsupported) {
				t.Errorf("Probe = %v, want unsupported", err)
			}
		})
	}
}
