package jailed_test

import (
	"fmt"
	"os"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/enginetest"
	"glasshouse/capability/manifest"
	"glasshouse/jail/backend/backendtest"
)

// TestContract runs the engine contract with a server in a container and, if gVisor is
// installed, with gVisor.
func TestContract(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			if runtime == "runsc" {
				backendtest.Repeats(t)
			}
			worlds := map[*testing.T]*world{}
			var last *world // the world that contains the files of the probe
			version := 0
			var without []string
			if runtime == "runsc" && os.Getenv("GLASSHOUSE_TEST") != "all" {
				without = []string{"FiftyConcurrentCalls", "CallsShareNoMemory", "SessionFiles", "Mounts", "NestedCalls", "NewVersion", "WarmCalls", "CloseReleasesResources"}
			}
			enginetest.Run(t, func(t *testing.T) engine.Engine {
				w := worlds[t]
				if w == nil {
					w = newWorld(t, runtime)
					worlds[t] = w
				} else {
					w.open()
				}
				last = w
				return w.engine
			}, enginetest.Options{
				Without: without,
				Install: func(t *testing.T, change func(*manifest.Capability)) *engine.Installed {
					version++
					return last.capability(func(c *manifest.Capability) {
						c.ID, c.Version = "test.probe", fmt.Sprintf("1.0.%d", version)
						change(c)
						if len(c.Filesystem.Mounts) > 0 && c.Filesystem.Mounts[0].Host == "shown" {
							c.Filesystem.Mounts = append(c.Filesystem.Mounts, app)
						}
					})
				},
			})
		})
	}
}
