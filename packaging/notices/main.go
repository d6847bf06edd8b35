// Notices prints the copyright file of the packages: the licence of Glasshouse and the notices of
// the third-party code that is compiled into it, which its licences require. Run it in the
// repository:
//
//	go run ./packaging/notices BINARY...
//
// The modules are read from the build information of the binaries, and their notices from the
// module cache. A module without a licence is an error, because it may not be redistributed.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

func main() {
	var out bytes.Buffer
	if err := write(&out, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
	os.Stdout.Write(out.Bytes())
}

func write(out io.Writer, binaries []string) error {
	if len(binaries) == 0 {
		return errors.New("usage: notices BINARY...")
	}
	for _, name := range []string{"NOTICE", "LICENSE"} {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", b)
	}
	io.WriteString(out, "The eBPF programs declare these licences to the kernel:\n\n")
	if err := kernelPrograms(out); err != nil {
		return err
	}
	if err := uiPackages(out); err != nil {
		return err
	}
	modules, err := modulesOf(binaries)
	if err != nil {
		return err
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	where := strings.Fields(string(cache))
	if len(where) != 2 {
		return fmt.Errorf("go env: %q", cache)
	}
	if err := notices(out, "Go and its standard library, "+runtime.Version(), where[1]); err != nil {
		return err
	}
	for _, m := range modules {
		dir, err := module.EscapePath(m.Path)
		if err != nil {
			return err
		}
		if err := notices(out, m.Path+" "+m.Version, filepath.Join(where[0], dir+"@"+m.Version)); err != nil {
			return err
		}
	}
	return nil
}

var licence = regexp.MustCompile(`(?m)^char LICENSE\[\] SEC\("license"\) = "(.*)";$`)

// kernelPrograms lists the sources of the eBPF programs with the licences that they declare.
func kernelPrograms(out io.Writer) error {
	sources, err := filepath.Glob("*/*.bpf.c")
	if err != nil {
		return err
	}
	deeper, err := filepath.Glob("*/*/*.bpf.c")
	if err != nil {
		return err
	}
	sources = append(sources, deeper...)
	slices.Sort(sources)
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		found := licence.FindSubmatch(text)
		if found == nil {
			return fmt.Errorf("%s declares no licence", name)
		}
		fmt.Fprintf(out, "  %s: %q\n", name, found[1])
	}
	return nil
}

// uiPackages lists the npm packages in the UI. Their notices are in their archives, which are not
// needed to build the program.
func uiPackages(out io.Writer) error {
	data, err := os.ReadFile("web/ui/package-lock.json")
	if err != nil {
		return err
	}
	var lock struct {
		Packages map[string]struct {
			Version, License string
			Dev              bool
		}
	}
	if err := json.Unmarshal(data, &lock); err != nil {
		return fmt.Errorf("web/ui/package-lock.json: %w", err)
	}
	io.WriteString(out, "\nIn the UI are, from npm, where their archives have their notices:\n\n")
	var lines []string
	for path, p := range lock.Packages {
		name, is := strings.CutPrefix(path, "node_modules/")
		if !is || p.Dev {
			continue
		}
		if p.License == "" {
			return fmt.Errorf("web/ui/package-lock.json: %s has no licence", name)
		}
		lines = append(lines, fmt.Sprintf("  %s %s: %s\n", name, p.Version, p.License))
	}
	slices.Sort(lines)
	_, err = io.WriteString(out, strings.Join(lines, ""))
	return err
}

// modulesOf returns the modules in the binaries, without duplicates.
func modulesOf(binaries []string) ([]module.Version, error) {
	var all []module.Version
	for _, name := range binaries {
		info, err := buildinfo.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			all = append(all, module.Version{Path: d.Path, Version: d.Version})
		}
	}
	module.Sort(all)
	return slices.Compact(all), nil
}

var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)

// notices prints the notices at the top of a module.
func notices(out io.Writer, what, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n%s\n", strings.Repeat("-", 78), what)
	found := false
	for _, e := range entries {
		if e.IsDir() || !noticeFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(out, "\n%s:\n\n%s\n", e.Name(), bytes.TrimRight(text, "\n"))
	}
	if !found {
		return fmt.Errorf("%s has no licence in %s", what, dir)
	}
	return nil
}
