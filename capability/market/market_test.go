package market_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/bundle"
	"glasshouse/capability/market"
	"glasshouse/fault"
)

// A stall is a market in a directory, with its signing key.
type stall struct {
	testing.TB
	dir     string
	keeper  *bundle.SecretKey
	vendor  *bundle.SecretKey
	visited market.Market
}

func newStall(t testing.TB) *stall {
	t.Helper()
	s := &stall{TB: t, dir: t.TempDir(), keeper: newKey(t), vendor: newKey(t)}
	s.visited = market.Market{Base: s.dir, Key: s.keeper.Public(), State: filepath.Join(t.TempDir(), "seen.json")}
	return s
}

func newKey(t testing.TB) *bundle.SecretKey {
	t.Helper()
	k, err := bundle.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (s *stall) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// lay adds a bundle to the market.
func (s *stall) lay(name, version, publisher string) string {
	s.Helper()
	src := s.TempDir()
	text := fmt.Sprintf(`{"name": %q, "version": %q, "publisher": %q, "tier": "informational", "description": "All about %s"}`, name, version, publisher, name)
	s.ok(os.WriteFile(filepath.Join(src, bundle.MetadataFile), []byte(text), 0o644))
	skill := fmt.Sprintf("---\nname: %s\ndescription: teaches\nversion: %q\n---\n\n# %s\n\nThink first.\n", name, version, name)
	s.ok(os.WriteFile(filepath.Join(src, "skill.yaml"), []byte(skill), 0o644))
	b, err := bundle.Sign(src, s.vendor, time.Time{})
	s.ok(err)
	file := filepath.Join(s.dir, name+"-"+version+".tar.gz")
	s.ok(b.Pack(file))
	return file
}

func (s *stall) publish() *market.Index {
	s.Helper()
	x, err := market.Publish(s.dir, s.keeper, 24*time.Hour)
	s.ok(err)
	return x
}

func (s *stall) index() *market.Index {
	s.Helper()
	x, err := s.visited.Index(s.Context())
	s.ok(err)
	return x
}

// names returns the names and versions of offers.
func names(offers []market.Offer) []string {
	all := []string{}
	for _, o := range offers {
		all = append(all, o.Name+" "+o.Version)
	}
	return all
}

func TestSearchFetchAndUpdate(t *testing.T) {
	s := newStall(t)
	s.lay("places", "1.9.0", "acme")
	newest := s.lay("places", "1.10.0", "acme")
	s.lay("places", "2.0.0-rc.1", "acme")
	s.lay("weather", "0.1.0", "acme")
	s.ok(os.WriteFile(filepath.Join(s.dir, "README.md"), []byte("hello"), 0o644))
	s.publish()

	web := httptest.NewServer(http.StripPrefix("/bundles", http.FileServer(http.Dir(s.dir))))
	defer web.Close()
	for _, base := range []string{s.dir, web.URL + "/bundles", web.URL + "/bundles/"} {
		s.visited.Base = base
		x := s.index()
		if got, want := names(x.Offers), []string{"places 2.0.0-rc.1", "places 1.10.0", "places 1.9.0", "weather 0.1.0"}; !cmp.Equal(got, want) {
			t.Errorf("%s offers %v, want %v", base, got, want)
		}
		for _, c := range []struct {
			words []string
			want  []string
		}{
			{nil, []string{"places 1.10.0", "weather 0.1.0"}},
			{[]string{"PLACES"}, []string{"places 1.10.0"}},
			{[]string{"about", "weather"}, []string{"weather 0.1.0"}},
			{[]string{"acme", "none"}, []string{}},
		} {
			if got := names(x.Search(c.words...)); !cmp.Equal(got, c.want) {
				t.Errorf("Search(%q) = %v, want %v", c.words, got, c.want)
			}
		}
		o, err := x.Find("places", "")
		s.ok(err)
		file, err := s.visited.Fetch(t.Context(), o, t.TempDir())
		s.ok(err)
		got, err := os.ReadFile(file)
		s.ok(err)
		want, err := os.ReadFile(newest)
		s.ok(err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: fetched other bytes", base)
		}
		if _, err := x.Find("places", "3.0.0"); market.ReasonOf(err) != market.Absent {
			t.Errorf("Find of what is not there: %v", err)
		}
	}

	x := s.index()
	updates := x.Outdated([]bundle.Installed{
		{Name: "weather", Version: "0.1.0", Publisher: "acme"},
		{Name: "places", Version: "1.9.0", Publisher: "acme"},
		{Name: "local", Version: "1.0.0", Publisher: "acme"},
	})
	if len(updates) != 1 || updates[0].Name != "places" || updates[0].Installed != "1.9.0" || updates[0].Newest.Version != "1.10.0" {
		t.Errorf("Outdated = %+v, want places from 1.9.0 to 1.10.0", updates)
	}
	if updates := x.Outdated([]bundle.Installed{{Name: "places", Version: "1.9.0", Publisher: "me"}}); len(updates) != 0 {
		t.Errorf("another publisher's bundle is reported as an update: %+v", updates)
	}
}

func TestPublishIncreasesSerial(t *testing.T) {
	s := newStall(t)
	s.lay("places", "1.0.0", "acme")
	first := s.publish()
	second := s.publish()
	if second.Serial <= first.Serial {
		t.Errorf("serial %d after %d", second.Serial, first.Serial)
	}
	s.index()
	if s.index().Serial != second.Serial {
		t.Error("the same index cannot be read twice")
	}
}

func TestPublishRejectsInvalidBundles(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *stall)
		want  error
	}{
		"a bundle that was tampered with": {func(s *stall) {
			file := s.lay("places", "1.0.0", "acme")
			b, err := os.ReadFile(file)
			s.ok(err)
			s.ok(os.WriteFile(file, append(b, "x"...), 0o644))
		}, bundle.Trailing},
		"a name of two publishers": {func(s *stall) {
			s.lay("places", "1.0.0", "acme")
			s.lay("places", "2.0.0", "other")
		}, fault.Conflict},
		"a version in two files": {func(s *stall) {
			b, err := os.ReadFile(s.lay("places", "1.0.0", "acme"))
			s.ok(err)
			s.ok(os.WriteFile(filepath.Join(s.dir, "again.tar.gz"), b, 0o644))
		}, fault.Invalid},
		"an index that is something else": {func(s *stall) { s.ok(os.WriteFile(filepath.Join(s.dir, "index.json"), []byte("<html>"), 0o644)) }, fault.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStall(t)
			c.spoil(s)
			_, err := market.Publish(s.dir, s.keeper, time.Hour)
			if !errors.Is(err, c.want) {
				t.Errorf("published: %v, want %v", err, c.want)
			}
		})
	}
}

// rewritten publishes an index that f has changed and signs it again.
func (s *stall) rewritten(f func(x *market.Index)) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, market.IndexFile))
	s.ok(err)
	var x market.Index
	s.ok(json.Unmarshal(text, &x))
	f(&x)
	x.Signature = ""
	x.Signature, err = s.keeper.SignJSON(x)
	s.ok(err)
	text, err = json.Marshal(x)
	s.ok(err)
	s.ok(os.WriteFile(filepath.Join(s.dir, market.IndexFile), text, 0o644))
}

func (s *stall) edited(f func(text string) string) {
	s.Helper()
	name := filepath.Join(s.dir, market.IndexFile)
	text, err := os.ReadFile(name)
	s.ok(err)
	after := f(string(text))
	if after == string(text) {
		s.Fatal("the index is unchanged")
	}
	s.ok(os.WriteFile(name, []byte(after), 0o644))
}

func stamp(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }

func TestHostileIndexIsRefused(t *testing.T) {
	signed := func(f func(x *market.Index)) func(*stall) { return func(s *stall) { s.rewritten(f) } }
	for _, c := range []struct {
		name  string
		want  market.Reason
		spoil func(s *stall)
	}{
		{"a file name that climbs out", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].File = "../../etc/shadow.zip" })},
		{"a file name from the root", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].File = "/etc/shadow.zip" })},
		{"a file name that is a URL", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].File = "http://10.0.0.1/x.zip" })},
		{"a file name with a query", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].File = "a.zip?x=.zip" })},
		{"a file name that is no bundle's", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].File = "index.json" })},
		{"a size of a terabyte", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].Size = 1 << 40 })},
		{"a size below nothing", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].Size = -1 })},
		{"a digest that is none", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].SHA256 = "../x" })},
		{"a name that is a path", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].Name = "../places" })},
		{"a description that drives the terminal", market.BadIndex, signed(func(x *market.Index) { x.Offers[0].Description = "\x1b[2J" })},
		{"a version twice", market.BadIndex, signed(func(x *market.Index) { x.Offers = append(x.Offers, x.Offers[0]) })},
		{"a signature.json in its place", market.BadIndex, signed(func(x *market.Index) { x.Format = bundle.Format })},
		{"more than an index has", market.BadIndex, func(s *stall) {
			s.edited(func(t string) string { return strings.Replace(t, "{", `{"install": true,`, 1) })
		}},
		{"a key twice", market.BadIndex, func(s *stall) { s.edited(func(t string) string { return strings.Replace(t, "{", `{"serial": 9,`, 1) }) }},
		{"an index that was changed", market.WrongKey, func(s *stall) {
			s.edited(func(t string) string { return strings.Replace(t, "All about", "Nothing about", 1) })
		}},
		{"an index of another key", market.WrongKey, func(s *stall) {
			s.keeper = newKey(s)
			s.publish()
		}},
		{"another key that says it is the market's", market.WrongKey, func(s *stall) {
			s.keeper = newKey(s)
			s.rewritten(func(*market.Index) {})
		}},
		{"an index that was kept from yesterday", market.Expired, signed(func(x *market.Index) { x.Made, x.Expires = stamp(-48*time.Hour), stamp(-24*time.Hour) })},
		{"an index of tomorrow", market.NotYet, signed(func(x *market.Index) { x.Made = stamp(24 * time.Hour) })},
		{"an older index", market.Rollback, func(s *stall) {
			s.index()
			s.rewritten(func(x *market.Index) { x.Serial-- })
		}},
		{"another index with the same number", market.Forked, func(s *stall) {
			s.index()
			s.rewritten(func(x *market.Index) { x.Offers = []market.Offer{} })
		}},
		{"an index of nine megabytes", market.TooLarge, func(s *stall) { s.edited(func(t string) string { return t + strings.Repeat(" ", 9<<20) }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStall(t)
			s.lay("places", "1.0.0", "acme")
			s.publish()
			c.spoil(s)
			_, err := s.visited.Index(t.Context())
			refused(t, err, c.want)
		})
	}
}

func refused(t *testing.T, err error, want market.Reason) {
	t.Helper()
	if got := market.ReasonOf(err); got != want {
		t.Fatalf("refused as %q (%v), want %q", got, err, want)
	}
	if fault.KindOf(err) == "" || fault.RemedyOf(err) == "" {
		t.Errorf("%v has no reason or no remedy", err)
	}
	if strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("the error contains control characters: %q", err)
	}
}

func TestFetchVerifiesDigest(t *testing.T) {
	for _, c := range []struct {
		name  string
		want  market.Reason
		spoil func(s *stall, o *market.Offer, file string)
	}{
		{"another file of that size", market.WrongBytes, func(s *stall, _ *market.Offer, file string) {
			b, err := os.ReadFile(file)
			s.ok(err)
			b[len(b)/2] ^= 1
			s.ok(os.WriteFile(file, b, 0o644))
		}},
		{"a longer file", market.TooLarge, func(s *stall, _ *market.Offer, file string) {
			b, err := os.ReadFile(file)
			s.ok(err)
			s.ok(os.WriteFile(file, append(b, "more"...), 0o644))
		}},
		{"a shorter file", market.WrongBytes, func(s *stall, _ *market.Offer, file string) { s.ok(os.Truncate(file, 100)) }},
		{"another version in the file", market.WrongBundle, func(_ *stall, o *market.Offer, _ string) { o.Version = "9.9.9" }},
		{"another content in the file", market.WrongBundle, func(_ *stall, o *market.Offer, _ string) { o.Digest = strings.Repeat("0", 64) }},
		{"a file elsewhere", market.BadIndex, func(_ *stall, o *market.Offer, _ string) { o.File = "../places.tar.gz" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStall(t)
			file := s.lay("places", "1.0.0", "acme")
			o := s.publish().Offers[0]
			c.spoil(s, &o, file)
			to := t.TempDir()
			_, err := s.visited.Fetch(t.Context(), o, to)
			refused(t, err, c.want)
			if left, _ := os.ReadDir(to); len(left) != 0 {
				t.Errorf("left-over files: %v", left)
			}
		})
	}
}

func TestLinkOutOfMarketIsNotFollowed(t *testing.T) {
	s := newStall(t)
	file := s.lay("places", "1.0.0", "acme")
	o := s.publish().Offers[0]
	outside := filepath.Join(t.TempDir(), "outside")
	s.ok(os.Rename(file, outside))
	s.ok(os.Symlink(outside, file))
	if _, err := s.visited.Fetch(t.Context(), o, t.TempDir()); err == nil {
		t.Error("a file outside of the market was read")
	}
}

func TestRedirectToOtherHostIsRefused(t *testing.T) {
	s := newStall(t)
	s.lay("places", "1.0.0", "acme")
	s.publish()
	var asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.FileServer(http.Dir(s.dir)).ServeHTTP(w, r)
	}))
	defer elsewhere.Close()
	to := elsewhere.URL + "/index.json"
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }))
	defer web.Close()

	s.visited.Base = web.URL
	_, err := s.visited.Index(t.Context())
	refused(t, err, market.OffHostRedirect)
	if asked.Load() != 0 {
		t.Error("the other host received a request")
	}
	to = web.URL + "/again/index.json" // redirects without end
	_, err = s.visited.Index(t.Context())
	refused(t, err, market.OffHostRedirect)
}

func TestInvalidServerResponses(t *testing.T) {
	s := newStall(t)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   error
	}{
		"nothing there":      {http.NotFound, fault.NotFound},
		"out of order":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, fault.Unavailable},
		"a page":             {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>log in first</html>") }, market.BadIndex},
		"a size without end": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99999999999") }, market.TooLarge},
		"an answer that ends": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		}, io.ErrUnexpectedEOF},
		"bytes without end": {func(w http.ResponseWriter, _ *http.Request) {
			for b := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}, market.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(c.answer)
			defer web.Close()
			s.visited.Base = web.URL
			if _, err := s.visited.Index(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("Index = %v, want %v", err, c.want)
			}
		})
	}
}

// pipes is an in-memory network.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func TestSlowServerTimesOut(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"says nothing": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"stops in the middle": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"format":`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"sends a byte now and then": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprint(w, " ")
				w.(http.Flusher).Flush()
				select {
				case <-time.After(20 * time.Second):
				case <-r.Context().Done():
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStall(t)
			synctest.Test(t, func(t *testing.T) {
				net1 := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
				srv := &http.Server{Handler: answer}
				go srv.Serve(net1)
				defer srv.Close()
				tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					here, there := net.Pipe()
					net1.conns <- there
					return here, nil
				}}
				defer tr.CloseIdleConnections()
				m := market.Market{Base: "http://market.test/b", Key: s.keeper.Public(), State: s.visited.State, Transport: tr}
				began := time.Now()
				_, err := m.Index(t.Context())
				refused(t, err, market.Slow)
				if took := time.Since(began); took > time.Hour {
					t.Errorf("it waited for %v", took)
				}
			})
		})
	}
}

func TestInvalidMarketAddress(t *testing.T) {
	s := newStall(t)
	for _, base := range []string{"", "bundles", "ftp://example.com/b", "http://", "http://user:pw@example.com/", "https://example.com/?q=1"} {
		s.visited.Base = base
		if _, err := s.visited.Index(t.Context()); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: %v, want invalid", base, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	// Workers must generate the same corpus, so the key and the time are fixed.
	text, err := os.ReadFile("../bundle/testdata/open.key")
	if err != nil {
		f.Fatal(err)
	}
	k, err := bundle.ParseSecretKey(string(text), nil)
	if err != nil {
		f.Fatal(err)
	}
	sum := strings.Repeat("0", 64)
	x := market.Index{
		Format: market.Format, Serial: 1, Made: "2026-01-01T00:00:00Z", Expires: "2026-02-01T00:00:00Z", Key: k.Public(),
		Offers: []market.Offer{{
			Metadata: bundle.Metadata{Name: "places", Version: "1.0.0", Publisher: "acme", Tier: bundle.Standard},
			Digest:   sum, Signer: k.Public(), File: "places.zip", Size: 1, SHA256: sum,
		}},
	}
	if x.Signature, err = k.SignJSON(x); err != nil {
		f.Fatal(err)
	}
	if text, err = json.Marshal(x); err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := market.Parse(text, k.Public())
		if err != nil {
			if market.ReasonOf(err) == "" {
				t.Errorf("refused without a reason: %v", err)
			}
			return
		}
		// Only the holder of the key can create another valid signature.
		if got.Signature != x.Signature {
			t.Errorf("an unsigned index was accepted: %s", text)
		}
	})
}
