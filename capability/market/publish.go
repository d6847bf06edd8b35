package market

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// Publish writes a signed index of the packed bundles in dir that is valid for good. A bundle
// that every installer would refuse is an error.
func Publish(dir string, k *bundle.SecretKey, good time.Duration) (*Index, error) {
	const op = "market.Publish"
	if good <= 0 {
		return nil, fault.Newf(fault.Invalid, op, dir, "index validity must be positive, got %v", good)
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	serial, err := nextSerial(dir)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	x := &Index{
		Format: Format, Serial: serial, Key: k.Public(), Offers: []Offer{},
		Made: now.Format(time.RFC3339), Expires: now.Add(good).Format(time.RFC3339),
	}
	for _, e := range all {
		if !bundle.IsArchive(e.Name()) {
			continue
		}
		o, err := offer(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		x.Offers = append(x.Offers, o)
	}
	slices.SortFunc(x.Offers, func(a, b Offer) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return manifest.CompareVersions(b.Version, a.Version)
	})
	if err := x.check(); err != nil {
		return nil, fault.New(fault.Invalid, op, dir, err)
	}
	if err := x.sameOwners(); err != nil {
		return nil, fault.New(fault.Conflict, op, dir, err)
	}
	if x.Signature, err = k.SignJSON(x); err != nil {
		return nil, fmt.Errorf("sign the index: %w", err)
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	if err := enc.Encode(x); err != nil {
		return nil, fmt.Errorf("encode the index: %w", err)
	}
	if text.Len() > maxIndex {
		return nil, fault.Newf(fault.TooLarge, op, dir, "the index has %d bytes, which exceeds the maximum of %d", text.Len(), maxIndex)
	}
	if err := atomicfile.Write(filepath.Join(dir, IndexFile), text.Bytes(), 0o644); err != nil {
		return nil, fmt.Errorf("write the index: %w", err)
	}
	return x, nil
}

// nextSerial returns a serial higher than that of the existing index. It is a time, so that it
// increases even if the index was lost.
func nextSerial(dir string) (int64, error) {
	serial := time.Now().Unix()
	text, err := os.ReadFile(filepath.Join(dir, IndexFile))
	if errors.Is(err, os.ErrNotExist) {
		return serial, nil
	}
	if err != nil {
		return 0, err
	}
	var was Index
	if err := json.Unmarshal(text, &was); err != nil {
		return 0, &fault.Error{
			Op: "market.Publish", On: filepath.Join(dir, IndexFile), Kind: fault.Conflict, Err: fmt.Errorf("the existing file is not an index: %w", err),
			Remedy: "move the file to another directory",
		}
	}
	return max(serial, was.Serial+1), nil
}

func offer(file string) (Offer, error) {
	b, err := bundle.Open(file)
	if err != nil {
		return Offer{}, err
	}
	if err := b.CheckClaims(); err != nil {
		return Offer{}, err
	}
	f, err := os.Open(file)
	if err != nil {
		return Offer{}, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	return Offer{
		Metadata: b.Metadata, Digest: b.Digest(), Signer: b.Signature.Key,
		File: filepath.Base(file), Size: size, SHA256: hex.EncodeToString(sum.Sum(nil)),
	}, err
}

// sameOwners refuses a name that has two publishers.
func (x *Index) sameOwners() error {
	for i, o := range x.Offers {
		if i > 0 && x.Offers[i-1].Name == o.Name && x.Offers[i-1].Publisher != o.Publisher {
			return fmt.Errorf("%s is offered by both %s and %s", o.Name, x.Offers[i-1].Publisher, o.Publisher)
		}
	}
	return nil
}
