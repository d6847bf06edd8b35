package test_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// newCanary returns a value that is unlikely to occur by chance.
func newCanary() string {
	var b [16]byte
	rand.Read(b[:])
	return "canary" + hex.EncodeToString(b[:])
}

// forms returns the encodings in which a value may be stored.
func forms(value string) [][]byte {
	h := hex.EncodeToString([]byte(value))
	all := [][]byte{[]byte(value), []byte(h), []byte(strings.ToUpper(h))}
	for shift := range 3 { // base64 depends on the offset of the value
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + value))
		all = append(all, []byte(b[4:len(b)-4]))
	}
	return all
}

func anyOf(words [][]byte, data []byte) bool {
	for _, w := range words {
		if bytes.Contains(data, w) {
			return true
		}
	}
	return false
}

// A hunt searches for a value in all its forms, including compressed data.
type hunt struct {
	words [][]byte
	zstd  *zstd.Decoder
}

func newHunt(t *testing.T, value string) *hunt {
	t.Helper()
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &hunt{words: forms(value), zstd: d}
}

func (h *hunt) in(data []byte) bool {
	if anyOf(h.words, data) {
		return true
	}
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd} // the magic number of a zstd frame (RFC 8878, section 3.1.1)
	for {
		i := bytes.Index(data, magic)
		if i < 0 {
			return false
		}
		data = data[i:]
		if err := h.zstd.Reset(bytes.NewReader(data)); err == nil {
			var plain bytes.Buffer
			io.Copy(&plain, io.LimitReader(h.zstd, 64<<20)) // data after the frame is an error, which is ignored
			if anyOf(h.words, plain.Bytes()) {
				return true
			}
		}
		data = data[1:]
	}
}

// inFile searches a file, without its holes.
func (h *hunt) inFile(name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var all []byte
	for at := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ESPIPE) { // the end of the file, or a file of nsfs
			break
		}
		if err != nil {
			return false, err
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) { // truncated in the meantime
			break
		}
		if err != nil {
			return false, err
		}
		part := make([]byte, end-start)
		n, err := f.ReadAt(part, start)
		if err != nil && err != io.EOF {
			return false, err
		}
		all, at = append(all, part[:n]...), end
	}
	return h.in(all), nil
}

// walkStored calls visit for each regular file below dir. It skips file systems in
// which the kernel shows its own state, such as the sysfs that a live jail has in its
// directory: many of their files cannot be read, even by root. A file that is removed
// during the walk is no error.
func walkStored(dir string, visit func(name string) error) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			var st unix.Statfs_t
			err = unix.Statfs(name, &st)
			switch st.Type {
			case unix.SYSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
				return filepath.SkipDir
			}
		}
		if err == nil && e.Type().IsRegular() {
			err = visit(name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// TestSecretSearchSkipsKernelFileSystems mounts a sysfs, in which even root cannot
// open files such as "bind" for reading, next to a file that must be found.
func TestSecretSearchSkipsKernelFileSystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	sys, after := filepath.Join(dir, "lower/sys"), filepath.Join(dir, "lower/work")
	for _, d := range []string{sys, after} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("sysfs", sys, "sysfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(sys, 0); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(after, "file")
	if err := os.WriteFile(file, []byte("the value"), 0o600); err != nil {
		t.Fatal(err)
	}
	look := newHunt(t, "the value")
	var got []string
	err := walkStored(dir, func(name string) error {
		found, err := look.inFile(name)
		if found {
			got = append(got, name)
		}
		return err
	})
	if err != nil || !slices.Equal(got, []string{file}) {
		t.Errorf("found in %q, %v; want %q", got, err, file)
	}
}

// findValue returns where a value is found: in files of the data directory, including those kept
// in memory, in command lines and environments of processes, and in the daemon's log.
func (h *daemonHarness) findValue(value string) []string {
	h.Helper()
	look := newHunt(h.T, value)
	var where []string
	err := walkStored(h.data, func(name string) error {
		found, err := look.inFile(name)
		if found {
			where = append(where, name)
		}
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	for _, kind := range []string{"cmdline", "environ"} {
		names, _ := filepath.Glob("/proc/[0-9]*/" + kind) // the pattern is valid
		for _, name := range names {
			if b, err := os.ReadFile(name); err == nil && look.in(b) {
				where = append(where, name)
			}
		}
	}
	if look.in(h.log.Bytes()) {
		where = append(where, "the daemon's log")
	}
	return where
}

// apiLeaks returns the API endpoints whose responses contain a value.
func (h *daemonHarness) apiLeaks(value string, jails []id.Jail, snapshots []id.Snapshot) []string {
	h.Helper()
	look := newHunt(h.T, value)
	paths := strings.Fields(`/jails /snapshots /lineage /secrets /approvals?state=all /notices/dead /chain?limit=1000 /chain/export /chain/head
		/chain/verify?all=true /tokens /metrics /doctor /backends /images /version /openapi.json`)
	for _, j := range jails {
		for _, p := range strings.Fields(`/ /snapshots /execs /events?follow=false /processes?all=true /network/log /network/pcap /report?format=json /report?format=html
			/report?format=md /fs/diff /policy /egress /files?path=/root&tar=true /files?path=/run&tar=true /files?path=/run/secrets`) {
			paths = append(paths, strings.TrimSuffix("/jails/"+string(j)+p, "/"))
		}
		paths = append(paths, "/sandbox/"+string(j)+"/decisions")
		for x, err := range h.Execs(h.Context(), j) {
			if err != nil {
				h.Fatal(err)
			}
			paths = append(paths, "/jails/"+string(j)+"/execs/"+string(x.ID))
		}
	}
	for _, s := range snapshots {
		paths = append(paths, "/snapshots/"+string(s), "/snapshots/"+string(s)+"/diff", "/snapshots/"+string(s)+"/export")
	}
	door := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.data, "glasshouse.sock"))
	}}}
	var where []string
	for _, p := range paths {
		resp, err := door.Get("http://localhost" + p)
		if err != nil {
			h.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			h.Errorf("%s: %v", p, err)
		}
		// A hidden endpoint must fail. All others must succeed, otherwise the search proves
		// nothing.
		if hidden := strings.HasSuffix(p, "/run/secrets"); hidden == (resp.StatusCode == 200) {
			h.Errorf("%s: %s %.300s", p, resp.Status, b)
		}
		if look.in(b) {
			where = append(where, p)
		}
	}
	return where
}

// setSecret stores a secret from a file with the command line.
func (h *daemonHarness) setSecret(name, value string) {
	h.Helper()
	cmd := exec.Command(h.bin, "secret", "set", name)
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data)
	cmd.Stdin = strings.NewReader(value + "\n")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		h.Fatalf("secret set %s: %v\n%s", name, err, out)
	}
}

// secretEntries returns the audit log's entries about the secrets of a jail, in order.
func (h *daemonHarness) secretEntries(j id.Jail) string {
	h.Helper()
	all, err := client.Collect(h.Chain(h.Context(), map[string][]string{"jail": {string(j)}, "kind": {"secret.granted,secret.used,secret.revoked,secret.refused"}}))
	if err != nil {
		h.Fatal(err)
	}
	var kinds []string
	for _, e := range all {
		kinds = append(kinds, strings.TrimPrefix(e.Kind, "secret."))
	}
	return strings.Join(kinds, " ")
}

func TestGrantAndRevokeSecretFile(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "worker"}).ID
	other := h.running(wire.CreateJail{Name: "other"}).ID
	value := newCanary()
	h.setSecret("API_KEY", value)
	if out := h.says("secret", "ls"); !strings.Contains(out, "API_KEY") || strings.Contains(out, value) {
		t.Errorf("secret ls: got %q", out)
	}
	if out := h.sh(j, "ls /run/secrets 2>/dev/null"); out != "" {
		t.Errorf("without a grant: got secrets %q, want none", out)
	}
	grant := h.says("secret", "grant", "API_KEY", "worker")
	if out := h.sh(j, "stat -c '%a %u' /run/secrets/API_KEY; cat /run/secrets/API_KEY; echo; env | grep -c "+value); out != "400 0\n"+value+"\n0" {
		t.Errorf("granted secret: got %q", out)
	}
	if out := h.sh(j, "echo x > /run/secrets/API_KEY || echo no; rm -f /run/secrets/API_KEY || echo no; touch /run/secrets/x || echo no; umount /run/secrets || echo no"); strings.Count(out, "no\n")+strings.Count(out, "no") < 4 {
		t.Errorf("writing to the secret: got %q", out)
	}
	if out := h.sh(other, "ls /run/secrets 2>/dev/null; cat /run/secrets/API_KEY 2>/dev/null"); out != "" {
		t.Errorf("secrets of another jail: got %q, want none", out)
	}
	for _, path := range []string{"/run/secrets/API_KEY", "/proc/self/root/run/secrets/API_KEY", "/run/../run/secrets/API_KEY"} {
		if r, err := h.ReadFile(t.Context(), j, path, 0, -1); err == nil {
			b, _ := io.ReadAll(r)
			r.Close()
			t.Errorf("the API returned %q at %s", b, path)
		}
	}
	h.kill()
	h.start()
	if out := h.sh(j, "cat /run/secrets/API_KEY"); out != value {
		t.Errorf("after a daemon restart: got %q", out)
	}

	// Revocation also removes the value from an open file.
	x, err := h.Exec(t.Context(), j, wire.ExecRequest{Detach: true, Cmd: "exec 3< /run/secrets/API_KEY; touch /tmp/open; while [ ! -e /tmp/revoked ]; do sleep 0.02; done; cat <&3 | wc -c > /tmp/left"})
	if err != nil {
		t.Fatal(err)
	}
	h.sh(j, "while [ ! -e /tmp/open ]; do sleep 0.02; done")
	h.says("secret", "revoke", grant)
	if out := h.sh(j, "ls /run/secrets 2>/dev/null; touch /tmp/revoked; while [ ! -s /tmp/left ]; do sleep 0.02; done; cat /tmp/left"); out != "0" {
		t.Errorf("after the revocation: got %q from %s", out, x.ID)
	}
	if got := h.secretEntries(j); !strings.HasPrefix(got, "granted used") || !strings.HasSuffix(got, " revoked") {
		t.Errorf("got audit log entries %q", got)
	}
	if got := h.secretEntries(other); got != "" {
		t.Errorf("audit log entries of the other jail: got %q, want none", got)
	}
}

func TestBranchInheritsSecrets(t *testing.T) {
	h, j := counting(t)
	follows, stays := newCanary(), newCanary()
	h.setSecret("FOLLOWS", follows)
	h.setSecret("STAYS", stays)
	h.says("secret", "grant", "FOLLOWS", "build", "--branches")
	h.says("secret", "grant", "STAYS", "build")
	if out := h.sh(j, "cd /run/secrets && echo *"); out != "FOLLOWS STAYS" {
		t.Fatalf("secrets of the jail: got %q", out)
	}
	s, err := h.TakeSnapshot(t.Context(), j, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{follows, stays} {
		if where := h.findValue(value); len(where) > 0 {
			t.Errorf("after a snapshot, a value is found in %q", where)
		}
	}
	made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	kid := made.Jails[0].ID
	if out := h.sh(kid, "cd /run/secrets && echo * && cat FOLLOWS"); out != "FOLLOWS\n"+follows {
		t.Errorf("secrets of the branch: got %q", out)
	}
	if got := h.secretEntries(kid); !strings.HasPrefix(got, "granted used") {
		t.Errorf("audit log entries of the branch: got %q", got)
	}
	// The branch has a grant of its own: revoking that of the first jail does not affect it.
	if err := h.DeleteSecret(t.Context(), "STAYS"); err != nil {
		t.Fatal(err)
	}
	if out := h.sh(j, "cd /run/secrets && echo *"); out != "FOLLOWS" {
		t.Errorf("after a removal: got secrets %q", out)
	}
}

// authority creates a certificate authority that this host trusts, and a server certificate for
// these names.
func authority(t *testing.T, hosts ...string) *tls.Config {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: hosts[0]}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	root, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	must(err)
	leaf, err := x509.CreateCertificate(rand.Reader, server, ca, &key.PublicKey, key)
	must(err)
	file := filepath.Join(t.TempDir(), "roots.pem")
	must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root}), 0o600))
	t.Setenv("SSL_CERT_FILE", file) // inherited by the daemon
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: key}}}
}

// TestRequestSecretsStayOutsideJail follows a canary that the proxy adds to a jail's
// requests: only the server it is meant for receives it, and echoes of it are masked.
func TestRequestSecretsStayOutsideJail(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	named(t, map[string]string{"api.example.com": serverAddr, "evil.example.com": serverAddr})
	var mu sync.Mutex
	var got []string
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = append(got, r.Host+" "+r.Header.Get("Authorization"))
		mu.Unlock()
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		json.NewEncoder(w).Encode(map[string]string{"you said": r.Header.Get("Authorization"), "b64": base64.StdEncoding.EncodeToString([]byte(r.Header.Get("Authorization")))})
	})
	website(t, world, serverAddr+":443", authority(t, "api.example.com"), echo)
	website(t, world, serverAddr+":80", nil, echo)

	h := open(t, fmt.Sprintf("%srootfs: {default: {dir: %q}}\nobserve: {packet_bytes: 9000}\n", tools(), rootfsWith(t, "curl")))
	value, file := newCanary(), newCanary()
	h.setSecret("API_KEY", value)
	h.setSecret("FILE_KEY", file)
	p := worker(t, 2)
	j := h.running(wire.CreateJail{Name: "worker", Network: "proxy", Policy: p, Egress: &wire.Egress{Allow: []wire.EgressRule{
		{Name: "the api", Host: "api.example.com", Ports: []uint16{443}, Inject: []wire.EgressInject{{Secret: "API_KEY", As: "bearer"}}},
		{Host: "evil.example.com", Ports: []uint16{80}},
	}}}).ID
	ask := func(j id.Jail, more string) string {
		t.Helper()
		return h.sh(j, "curl -sS -i --max-time 20 "+more+" https://api.example.com/v1 2>&1 | tr -d '\\r'")
	}
	if out := ask(j, ""); strings.Contains(out, "you said") {
		t.Errorf("without a grant: got %q", out)
	}
	h.says("secret", "grant", "API_KEY", "worker", "--inject", "api.example.com")
	h.says("secret", "grant", "FILE_KEY", "worker")
	for _, more := range []string{"", "--noproxy '*'"} { // a client that uses the proxy settings, and one that does not
		out := ask(j, more)
		if !strings.Contains(out, "200") || !strings.Contains(out, `"you said":"Bearer *`) || anyOf(forms(value), []byte(out)) {
			t.Errorf("%s: the jail got %q", more, out)
		}
	}
	h.sh(j, "curl -sS --max-time 20 http://evil.example.com/; wc -c < /run/secrets/FILE_KEY")
	mu.Lock()
	if want := []string{"api.example.com Bearer " + value, "api.example.com Bearer " + value, "evil.example.com "}; strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("the server got %q, want %q", got, want)
	}
	mu.Unlock()
	if got := h.secretEntries(j); !strings.Contains(got, "granted") || !strings.Contains(got, "used") || !strings.Contains(got, "refused") {
		t.Errorf("got audit log entries %q", got)
	}

	// Neither value is found in stored data or in API responses.
	done := h.ask(j, "bash", "git push")
	h.says("deny", string(h.pendingApproval(j, "git push").ID))
	h.waitVerdict(done)
	jails := []id.Jail{j}
	var snapshots []id.Snapshot
	s, err := h.TakeSnapshot(t.Context(), j, wire.TakeSnapshot{})
	switch {
	case errors.Is(err, fault.Unsupported):
	case err != nil:
		t.Fatal(err)
	default:
		snapshots = append(snapshots, s.ID)
		made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		kid := made.Jails[0].ID
		jails = append(jails, kid)
		if out := ask(kid, ""); strings.Contains(out, "you said") {
			t.Errorf("a branch without its own grant got %q", out)
		}
	}
	for name, v := range map[string]string{"injected": value, "file": file} {
		if where := h.findValue(v); len(where) > 0 {
			t.Errorf("the value %s is found in %q", name, where)
		}
		if where := h.apiLeaks(v, jails, snapshots); len(where) > 0 {
			t.Errorf("the value %s is in API responses %q", name, where)
		}
	}
	// Self-test: the search finds a value that a jail has written to a file.
	h.sh(j, "cp /run/secrets/FILE_KEY /root/mine; sync")
	if where := h.findValue(file); len(where) == 0 {
		t.Error("the search does not find a value that a jail has written")
	}
}
