// Package object stores data as objects with names, for daemons on several hosts: in a directory
// that they share (object/dir), or in an S3-compatible service (object/s3).
package object

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"strings"
	"time"

	"glasshouse/fault"
)

// A Store stores objects. It is safe for concurrent use, also by several processes. An object
// is visible as a whole or not at all. Each method ends when its context does. Errors about an
// object that does not exist are fault.NotFound.
type Store interface {
	// Put stores what r returns until io.EOF, and replaces an object with the same key. After an
	// error of r nothing is stored.
	Put(ctx context.Context, key string, r io.Reader) error
	// Get reads an object. If the object is not read to its end, or replaced meanwhile, Read
	// returns an error rather than mixed or incomplete data.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	Head(ctx context.Context, key string) (Info, error)
	// Delete deletes an object. It is no error if the object does not exist.
	Delete(ctx context.Context, key string) error
	// List returns the objects whose keys begin with prefix.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
}

// Info describes an object.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// PutFrom is like Put for the data that write writes. After an error of write nothing is stored.
func PutFrom(ctx context.Context, s Store, key string, write func(io.Writer) error) error {
	in, out := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out.CloseWithError(write(out))
	}()
	err := s.Put(ctx, key, in)
	in.CloseWithError(errors.Join(err, errPutEnded)) // ends write if Put has not read everything
	<-done
	return err
}

var errPutEnded = errors.New("the transfer of the object has ended")

// Check returns why objects cannot be stored, read, listed and deleted, for example because of
// missing permissions.
func Check(ctx context.Context, s Store) (err error) {
	key, want := "check/"+rand.Text(), []byte("glasshouse")
	if err := s.Put(ctx, key, bytes.NewReader(want)); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.Delete(context.WithoutCancel(ctx), key))
	}()
	r, err := s.Get(ctx, key)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fault.Newf(fault.Unavailable, "object.Check", key, "the store returned %d bytes other than those that were stored", len(got))
	}
	for o, err := range s.List(ctx, key) {
		if err != nil {
			return err
		}
		if o.Key == key {
			return nil
		}
	}
	return fault.Newf(fault.Unavailable, "object.Check", key, "the store does not list an object that it has")
}

// maxKey limits the length of a key. S3 allows 1024 bytes, including the prefix of the bucket.
const maxKey = 512

// CheckKey returns fault.Invalid unless key consists of segments of letters, digits, and the
// characters - _ . that are separated by single slashes. No segment begins with a dot.
func CheckKey(key string) error {
	valid := key != "" && len(key) <= maxKey
	for segment := range strings.SplitSeq(key, "/") {
		valid = valid && segment != "" && segment[0] != '.'
	}
	for _, c := range []byte(key) {
		valid = valid && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_./", c) >= 0)
	}
	if !valid {
		return fault.Newf(fault.Invalid, "object.CheckKey", "", "%q is not a valid object key", key)
	}
	return nil
}
