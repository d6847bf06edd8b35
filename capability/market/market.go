package market

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// A Market is the location of an index and its signing key. It is safe for concurrent use.
// Only one process may use its State.
type Market struct {
	Base  string           // a directory, or an http or https URL
	Key   bundle.PublicKey // verifies the index
	State string           // file that stores the newest index seen

	// Transport sends HTTP requests; nil means http.DefaultTransport.
	Transport http.RoundTripper

	mu sync.Mutex // held while State is read and written
}

// seen identifies the newest index that was seen.
type seen struct {
	Serial int64  `json:"serial"`
	SHA256 string `json:"sha256"` // SHA-256 hash of its text
}

// Index fetches the index. It refuses an index that is not signed, has expired, or is older
// than one that was seen.
func (m *Market) Index(ctx context.Context) (*Index, error) {
	x, err := m.index(ctx)
	if err != nil {
		return nil, m.on(err)
	}
	return x, nil
}

func (m *Market) index(ctx context.Context) (*Index, error) {
	var text bytes.Buffer
	if err := m.fetch(ctx, IndexFile, maxIndex, &text); err != nil {
		return nil, err
	}
	x, err := parse(text.Bytes(), m.Key)
	if err != nil {
		return nil, err
	}
	if err := x.fresh(time.Now()); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text.Bytes())
	return x, m.remember(seen{Serial: x.Serial, SHA256: hex.EncodeToString(sum[:])})
}

// on adds the market to an error.
func (m *Market) on(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.On == "" && ReasonOf(err) != "" {
		named := *e
		named.On = m.Base
		return &named
	}
	return fmt.Errorf("market %s: %w", m.Base, err)
}

// remember stores the index that was seen. It refuses one that is older, or another one with
// the same serial.
func (m *Market) remember(now seen) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var was seen
	text, err := os.ReadFile(m.State)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read the market's state: %w", err)
	default:
		if err := json.Unmarshal(text, &was); err != nil {
			return fmt.Errorf("read the market's state in %s: %w", m.State, err)
		}
	}
	switch {
	case now == was:
		return nil
	case now.Serial < was.Serial:
		return refuse(Rollback, "", "serial %d is lower than %d, which was seen before", now.Serial, was.Serial)
	case now.Serial == was.Serial:
		return refuse(Forked, "", "another index with serial %d was seen before", now.Serial)
	}
	text, err = json.Marshal(now)
	if err != nil {
		return err
	}
	if err := atomicfile.Durable(m.State, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the market's state: %w", err)
	}
	return nil
}

// Fetch downloads an offered bundle into dir, under its file name in the market, and verifies that
// it is the bundle in the index. The caller removes the file. The installer checks whether its
// publisher is trusted.
func (m *Market) Fetch(ctx context.Context, o Offer, dir string) (file string, err error) {
	if err := o.check(); err != nil {
		return "", m.on(refuse(BadIndex, "", "%w", err))
	}
	f, err := os.OpenFile(filepath.Join(dir, o.File), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = m.on(err)
		}
	}()
	sum := sha256.New()
	if err := errors.Join(m.fetch(ctx, o.File, o.Size, io.MultiWriter(f, sum)), f.Close()); err != nil {
		return "", err
	}
	if hex.EncodeToString(sum.Sum(nil)) != o.SHA256 {
		return "", refuse(WrongBytes, "", "%s does not match its digest in the index", o.File)
	}
	b, err := bundle.Open(f.Name())
	if err != nil {
		return "", err
	}
	if b.Metadata.Name != o.Name || b.Metadata.Version != o.Version || b.Digest() != o.Digest {
		return "", refuse(WrongBundle, "", "%s is %s %s, but the index lists %s %s", o.File, b.Metadata.Name, b.Metadata.Version, o.Name, o.Version)
	}
	return f.Name(), nil
}

// fetch copies a file of the market of at most most bytes.
func (m *Market) fetch(ctx context.Context, name string, most int64, to io.Writer) error {
	if strings.HasPrefix(m.Base, "http://") || strings.HasPrefix(m.Base, "https://") {
		return m.download(ctx, name, most, to)
	}
	if strings.Contains(m.Base, "://") || !filepath.IsAbs(m.Base) {
		return fault.Newf(fault.Invalid, "market.fetch", m.Base, "neither an absolute path nor a URL with http or https")
	}
	root, err := os.OpenRoot(m.Base)
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := root.Stat(name)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return refuse(BadIndex, "", "%s is not a regular file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return copyUpTo(to, f, most, name)
}

func copyUpTo(to io.Writer, from io.Reader, most int64, name string) error {
	n, err := io.Copy(to, io.LimitReader(from, most+1))
	if err == nil && n > most {
		err = refuse(TooLarge, "", "%s has more than %d bytes", name, most)
	}
	return err
}
