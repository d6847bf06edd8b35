// Package objecttest checks implementations of object.Store.
package objecttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/object"
)

// Run checks that a store satisfies the contract of object.Store. open returns an empty one.
func Run(t *testing.T, open func(t *testing.T) object.Store) {
	for name, check := range map[string]func(*testing.T, object.Store){
		"PutAndGet": putAndGet, "Missing": missing, "InvalidKeys": invalidKeys, "List": list, "FailedReaderStoresNothing": failedReader,
		"ReplacedWhileRead": replaced, "ContextEnds": contextEnds, "Concurrent": concurrent, "Check": check,
	} {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

func put(t *testing.T, s object.Store, key, text string) {
	t.Helper()
	if err := s.Put(t.Context(), key, strings.NewReader(text)); err != nil {
		t.Fatalf("Put(%s) = %v, want success", key, err)
	}
}

// Get returns the data of an object.
func Get(ctx context.Context, s object.Store, key string) ([]byte, error) {
	r, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

func putAndGet(t *testing.T, s object.Store) {
	random := rand.NewChaCha8([32]byte{})
	for _, size := range []int{0, 1, 4096, 5<<20 + 1, 33 << 20} {
		want := make([]byte, size)
		random.Read(want)
		key := fmt.Sprintf("a/b-%d", size)
		began := time.Now().Add(-time.Minute)
		if err := s.Put(t.Context(), key, bytes.NewReader(want)); err != nil {
			t.Fatalf("Put of %d bytes = %v", size, err)
		}
		if got, err := Get(t.Context(), s, key); err != nil || !bytes.Equal(got, want) {
			t.Errorf("Get of %d bytes = %d bytes, %v, want the same data", size, len(got), err)
		}
		if got, err := s.Head(t.Context(), key); err != nil || got.Key != key || got.Size != int64(size) || got.Modified.Before(began) {
			t.Errorf("Head = %+v, %v, want %d bytes written just now", got, err, size)
		}
	}
	put(t, s, "a/b-1", "replaced")
	if got, err := Get(t.Context(), s, "a/b-1"); err != nil || string(got) != "replaced" {
		t.Errorf("Get = %q, %v, want the new data", got, err)
	}
}

func missing(t *testing.T, s object.Store) {
	put(t, s, "dir/there", "x")
	for _, key := range []string{"none", "dir", "dir/none", "dir/there/below"} {
		if _, err := Get(t.Context(), s, key); !errors.Is(err, fault.NotFound) {
			t.Errorf("Get(%s) = %v, want not found", key, err)
		}
		if _, err := s.Head(t.Context(), key); !errors.Is(err, fault.NotFound) {
			t.Errorf("Head(%s) = %v, want not found", key, err)
		}
	}
	for range 2 {
		if err := s.Delete(t.Context(), "dir/there"); err != nil {
			t.Errorf("Delete = %v, want success also when it is gone", err)
		}
	}
	if _, err := Get(t.Context(), s, "dir/there"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of a deleted object = %v, want not found", err)
	}
	put(t, s, "dir/there", "again")
}

func invalidKeys(t *testing.T, s object.Store) {
	for _, key := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "../x", ".hidden", "a/.b", "a b", "a\x00", "ä", "a\\b", strings.Repeat("a", 513)} {
		errs := []error{s.Put(t.Context(), key, strings.NewReader("x")), s.Delete(t.Context(), key)}
		_, err := s.Get(t.Context(), key)
		errs = append(errs, err)
		_, err = s.Head(t.Context(), key)
		for _, err := range append(errs, err) {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("key %q: %v, want invalid", key, err)
			}
		}
	}
}

func keys(t *testing.T, s object.Store, prefix string) (all []string) {
	t.Helper()
	for o, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("List(%q) = %v", prefix, err)
		}
		all = append(all, o.Key)
	}
	return all
}

func list(t *testing.T, s object.Store) {
	if got := keys(t, s, "runs/"); len(got) != 0 {
		t.Errorf("List of an empty store = %q", got)
	}
	var want []string
	for _, run := range []string{"r-1", "r-10", "r-2"} {
		for n := range 3 {
			key := fmt.Sprintf("runs/%s/s-%d", run, n)
			put(t, s, key, "x")
			want = append(want, key)
		}
	}
	put(t, s, "other", "x")
	got := keys(t, s, "runs/")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("List(runs/) = %q, want %q", got, want)
	}
	if got := keys(t, s, "runs/r-1/"); !slices.Equal(got, want[:3]) {
		t.Errorf("List(runs/r-1/) = %q, want %q", got, want[:3])
	}
	if got := keys(t, s, "runs/r-1"); len(got) != 6 {
		t.Errorf("List(runs/r-1) = %q, want the objects of r-1 and r-10", got)
	}
	if got := keys(t, s, ""); len(got) != 10 {
		t.Errorf("List() = %q, want 10 objects", got)
	}
	for range s.List(t.Context(), "") {
		break
	}
}

var errRead = errors.New("the source failed")

func failedReader(t *testing.T, s object.Store) {
	put(t, s, "kept", "old")
	for _, size := range []int64{0, 10, 33 << 20} {
		for _, key := range []string{"new", "kept"} {
			broken := io.MultiReader(io.LimitReader(rand.NewChaCha8([32]byte{}), size), failing{})
			if err := s.Put(t.Context(), key, broken); err == nil {
				t.Errorf("Put of a reader that fails after %d bytes = nil, want an error", size)
			}
		}
		if _, err := s.Head(t.Context(), "new"); !errors.Is(err, fault.NotFound) {
			t.Errorf("Head after a failed Put = %v, want not found", err)
		}
		if got, err := Get(t.Context(), s, "kept"); err != nil || string(got) != "old" {
			t.Errorf("Get = %q, %v, want the old data after a failed Put", got, err)
		}
	}
	if got := keys(t, s, ""); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("objects after failures: %q, want only the old one", got)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errRead }

func replaced(t *testing.T, s object.Store) {
	one, two := bytes.Repeat([]byte("1"), 12<<20), bytes.Repeat([]byte("2"), 12<<20)
	if err := s.Put(t.Context(), "a", bytes.NewReader(one)); err != nil {
		t.Fatal(err)
	}
	r, err := s.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	head := make([]byte, 1000)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a", bytes.NewReader(two)); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if got := append(head, rest...); err == nil && !bytes.Equal(got, one) && !bytes.Equal(got, two) {
		t.Errorf("a replaced object was read as %d bytes with both contents", len(got))
	}
}

func contextEnds(t *testing.T, s object.Store) {
	put(t, s, "a", "x")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Put(ended, "b", strings.NewReader("x")); err == nil {
		t.Error("Put with an ended context = nil, want an error")
	}
	if _, err := Get(ended, s, "a"); err == nil {
		t.Error("Get with an ended context = nil, want an error")
	}
	var err error
	for _, err = range s.List(ended, "") {
	}
	if err == nil {
		t.Error("List with an ended context has no error")
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(50*time.Millisecond))
		err := s.Put(ctx, "big", io.LimitReader(rand.NewChaCha8([32]byte{}), 64<<20))
		cancel()
		info, herr := s.Head(t.Context(), "big")
		if err == nil && (herr != nil || info.Size != 64<<20) || herr == nil && info.Size != 64<<20 {
			t.Errorf("Put = %v, and then Head = %+v, %v: the object is incomplete", err, info, herr)
		}
	}
}

func check(t *testing.T, s object.Store) {
	put(t, s, "other", "x")
	if err := object.Check(t.Context(), s); err != nil {
		t.Errorf("Check = %v, want success", err)
	}
	if got := keys(t, s, ""); !slices.Equal(got, []string{"other"}) {
		t.Errorf("objects after Check = %q, want only the old one", got)
	}
}

func concurrent(t *testing.T, s object.Store) {
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			text := strings.Repeat(fmt.Sprint(n%10), 100_000)
			for range 5 {
				if err := s.Put(t.Context(), "x/same", strings.NewReader(text)); err != nil {
					t.Errorf("Put = %v", err)
				}
				key := fmt.Sprintf("x/%d/own", n)
				if err := s.Put(t.Context(), key, strings.NewReader(text)); err != nil {
					t.Errorf("Put = %v", err)
				}
				got, err := Get(t.Context(), s, "x/same")
				if err == nil && (len(got) != len(text) || strings.Trim(string(got), string(got[:1])) != "") {
					t.Errorf("Get = %d bytes of different writers", len(got))
				}
				if err := s.Delete(t.Context(), key); err != nil {
					t.Errorf("Delete = %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := keys(t, s, ""); !slices.Equal(got, []string{"x/same"}) {
		t.Errorf("objects = %q, want x/same", got)
	}
}
