// Notices lists the third-party code that is compiled into the packages. By default it prints their
// copyright file: the licence of Glasshouse and the notices that the licences require. With -sbom
// it prints a software bill of materials, as CycloneDX JSON. Run it in the repository:
//
//	go run ./packaging/notices [-sbom VERSION] BINARY...
//
// The modules are read from the build information of the binaries, their notices from the module
// cache, and the packages in the UI from web/ui. A module without a licence is an error, because it
// may not be redistributed.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
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
	version := flag.String("sbom", "", "print the SBOM of this version")
	flag.Parse()
	var out bytes.Buffer
	err := error(nil)
	switch {
	case flag.NArg() == 0:
		err = errors.New("usage: notices [-sbom VERSION] BINARY...")
	case *version != "":
		err = writeSBOM(&out, *version, flag.Args())
	default:
		err = write(&out, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
	os.Stdout.Write(out.Bytes())
}

func write(out io.Writer, binaries []string) error {
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
	if err := writeUIPackages(out); err != nil {
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
			return fmt.Errorf("find the module %s: %w", m.Path, err)
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

// writeUIPackages lists the npm packages in the UI. Their notices are in their archives, which are
// not needed to build the program.
func writeUIPackages(out io.Writer) error {
	packages, err := uiPackages()
	if err != nil {
		return err
	}
	io.WriteString(out, "\nIn the UI are, from npm, where their archives have their notices:\n\n")
	for _, p := range packages {
		fmt.Fprintf(out, "  %s %s: %s\n", p.Name, p.Version, p.License)
	}
	return nil
}

// An npmPackage is a package in the UI, as web/ui/package-lock.json describes it.
type npmPackage struct {
	Name      string `json:"-"`
	Version   string
	License   string
	Integrity string // sha512-BASE64
}

// uiPackages returns the packages of web/ui/bundled.txt, which the build of the UI writes.
func uiPackages() ([]npmPackage, error) {
	data, err := os.ReadFile("web/ui/package-lock.json")
	if err != nil {
		return nil, err
	}
	var lock struct{ Packages map[string]npmPackage }
	if err := json.Unmarshal(data, &lock); err != nil {
		return nil, fmt.Errorf("web/ui/package-lock.json: %w", err)
	}
	names, err := os.ReadFile("web/ui/bundled.txt")
	if err != nil {
		return nil, err
	}
	var all []npmPackage
	for name := range strings.FieldsSeq(string(names)) {
		p := lock.Packages["node_modules/"+name]
		if p.Version == "" || p.License == "" || p.Integrity == "" {
			return nil, fmt.Errorf("web/ui/package-lock.json lacks the version, licence or integrity of %s", name)
		}
		p.Name = name
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, errors.New("web/ui/bundled.txt is empty: run make ui")
	}
	return all, nil
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
