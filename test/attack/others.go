package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// secrets searches for values that other capabilities were given. The values are passed
// reversed, so that the arguments do not contain them.
func secrets(words map[string]string) []attempt {
	values := list(words, "backwards")
	for i, v := range values {
		b := []byte(v)
		slices.Reverse(b)
		values[i] = string(b)
	}
	var all []attempt
	for _, path := range slices.Concat(everyFile("/run", "/dev/shm", "/tmp", "/etc", "/data", "/app"),
		glob("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/[0-9]*/root/run/secrets/*", "/proc/[0-9]*/cwd/*")) {
		all = append(all, attempt{path, func() (string, error) {
			b, err := os.ReadFile(path)
			return has(b, err, values)
		}})
	}
	for _, name := range list(words, "names") {
		all = append(all, attempt{"by name " + name, func() (string, error) {
			b, err := os.ReadFile("/run/secrets/" + name)
			return has(b, err, values)
		}})
	}
	all = append(all, attempt{"the environment", func() (string, error) {
		return has([]byte(strings.Join(os.Environ(), "\n")), nil, values)
	}})
	for _, path := range []string{"/secrets", "/capabilities", "/approvals", "/chain", "/call", "/call/../secrets"} {
		all = append(all, attempt{"the socket's " + path, func() (string, error) {
			status, b, err := request("GET", path, nil)
			if err == nil && status < 400 {
				return "it answers " + string(b), nil
			}
			return has(b, err, values)
		}})
	}
	return all
}

func everyFile(dirs ...string) (all []string) {
	for _, dir := range dirs {
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				all = append(all, path)
			}
			return nil
		})
	}
	return all
}

// request sends a request to the socket through which capabilities call others.
func request(method, path string, body []byte) (int, []byte, error) {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", os.Getenv("GLASSHOUSE_CALL_SOCKET"))
	}}}
	r, err := http.NewRequest(method, "http://call"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// callOther calls another capability for an operation that this one may not perform. words contains
// its id and the input.
func callOther(words map[string]string) []attempt {
	return []attempt{{words["id"], func() (string, error) {
		status, b, err := request("POST", "/call/"+words["id"], []byte(words["input"]))
		if err != nil {
			return "", err
		}
		if status != http.StatusOK {
			return "", errors.New(string(b))
		}
		return string(b), nil
	}}}
}

// ask sends requests, as an ordinary program does, and returns the responses. It does not verify
// the server.
func ask(words map[string]string) []attempt {
	var all []attempt
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	for _, url := range list(words, "urls") {
		all = append(all, attempt{url, func() (string, error) {
			r, err := http.NewRequest("GET", url, nil)
			if err != nil {
				return "", err
			}
			for name, value := range words {
				if key, ok := strings.CutPrefix(name, "header "); ok {
					r.Header.Set(key, value)
				}
			}
			resp, err := client.Do(r)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if resp.StatusCode >= 400 {
				return "", fmt.Errorf("%s: %s", resp.Status, b)
			}
			return fmt.Sprintf("%s %v %s", resp.Request.URL, resp.Header, b), err
		}})
	}
	return all
}

// hoard keeps references to the memory that exhaust allocates.
var hoard [][]byte

// exhaust uses up a resource.
func exhaust(words map[string]string) []attempt {
	return []attempt{{words["what"], func() (string, error) {
		switch words["what"] {
		case "time":
			for n := uint(0); ; n++ { // burns processor time
			}
		case "memory":
			for {
				b := make([]byte, 1<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				hoard = append(hoard, b)
			}
		case "processes":
			for {
				again(words["mark"], order{Do: "exhaust", Words: words}) // until no more processes can be created
			}
		case "disk":
			_, err := fill("/tmp/full", 1<<30)
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		case "output":
			b := bytes.Repeat([]byte("flood"), 1<<16)
			for {
				if _, err := os.Stdout.Write(b); err != nil {
					return "", err
				}
			}
		}
		return "", nil
	}}}
}

// hold blocks, to be inspected from outside.
func hold(map[string]string) []attempt {
	return []attempt{{"stay", func() (string, error) {
		for {
			time.Sleep(time.Hour)
		}
	}}}
}

// plantAt is where a left-behind process listens.
const plantAt = "127.0.0.1:4444"

// daemonize tries to leave a process that outlives this one.
func daemonize(mark string) error {
	l, err := net.Listen("tcp", plantAt)
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	return again(mark, order{Do: "hold"}, f)
}

// again starts this program once more, in a new session.
func again(mark string, o order, files ...*os.File) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("/proc/self/exe", mark)
	cmd.Stdin, cmd.ExtraFiles = r, files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(o)
}

func reachDaemon() (string, error) {
	c, err := net.DialTimeout("tcp", plantAt, time.Second)
	if err != nil {
		return "", err
	}
	c.Close()
	return "it listens", nil
}
