// Package s3 stores objects in an S3-compatible service.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"glasshouse/fault"
	"glasshouse/object"
)

// Store stores objects in a bucket. It implements object.Store.
type Store struct {
	client *minio.Client
	bucket string
	prefix string // of all keys; "" or ending in a slash
}

// Open returns the store that a URL names: s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Without
// an endpoint it is Amazon S3. The credentials are those of the environment variables
// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of ~/.aws/credentials, or of the role of the
// machine. Open does not connect.
func Open(u *url.URL) (*Store, error) {
	const op = "s3.Open"
	invalid := func(format string, args ...any) error {
		return fault.Newf(fault.Invalid, op, u.Scheme+"://"+u.Host, format, args...)
	}
	q := u.Query()
	endpoint, err := url.Parse(cmp.Or(q.Get("endpoint"), "https://s3.amazonaws.com"))
	if err != nil {
		return nil, invalid("invalid endpoint: %w", err)
	}
	prefix := strings.Trim(u.Path, "/")
	switch {
	case u.User != nil || endpoint.User != nil:
		return nil, invalid("credentials do not belong in the URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case s3utils.CheckValidBucketName(u.Host) != nil:
		return nil, invalid("the name of the bucket is missing or invalid")
	case endpoint.Scheme != "https" && endpoint.Scheme != "http" || endpoint.Host == "":
		return nil, invalid("the endpoint must be an http or https URL")
	case prefix != "" && object.CheckKey(prefix) != nil:
		return nil, invalid("invalid prefix")
	}
	for name := range q {
		if name != "endpoint" && name != "region" {
			return nil, invalid("unknown parameter %q", name)
		}
	}
	if prefix != "" {
		prefix += "/"
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		}),
		Secure: endpoint.Scheme == "https", Region: q.Get("region"),
		MaxRetries: 1, // the client would send a reader again that a failed request may still read
	})
	if err != nil {
		return nil, invalid("%w", err)
	}
	return &Store{client, u.Host, prefix}, nil
}

// wrap gives an error of the service its kind.
func wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	switch r := minio.ToErrorResponse(err); {
	case r.Code == minio.NoSuchKey:
		return fault.Newf(fault.NotFound, op, key, "no such object")
	case r.Code == minio.NoSuchBucket:
		return &fault.Error{Op: op, Kind: fault.Unavailable, On: key, Err: err, Remedy: "create the bucket"}
	case r.StatusCode == http.StatusForbidden:
		return &fault.Error{Op: op, Kind: fault.Denied, On: key, Err: err, Remedy: "check the credentials, and that they may read, write, list and delete objects of the bucket"}
	}
	return fault.New(fault.Unavailable, op, key, err)
}

// attempts is how often a request is sent that the service did not answer properly, and backoff
// the time before the second.
const (
	attempts = 5
	backoff  = 100 * time.Millisecond
)

// retry calls do, which sends one request, until the service has answered it.
func retry(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		if n == attempts || fault.KindOf(err) != fault.Unavailable {
			return err
		}
		select {
		case <-time.After(backoff<<n + rand.N(backoff)):
		case <-ctx.Done():
			return err
		}
	}
}

// partSize is the size of the parts of an upload. One is in memory at a time. An object has at
// most 10 000 parts, hence 320 GB.
const partSize = 32 << 20

// Put implements object.Store. A part of a large object is sent once; the caller repeats the whole.
// The parts have checksums. Their digests are not signed, because the
// data are not secret from the service, and the caller checks what it reads.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) error {
	if err := object.CheckKey(key); err != nil {
		return err
	}
	head, err := io.ReadAll(io.LimitReader(r, partSize))
	if err != nil {
		return wrap("object.Put", key, err)
	}
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: partSize, NumThreads: 1, DisableContentSha256: true}
	if len(head) < partSize {
		return retry(ctx, func() error {
			_, err := s.client.PutObject(ctx, s.bucket, s.prefix+key, bytes.NewReader(head), int64(len(head)), o)
			return wrap("object.Put", key, err)
		})
	}
	_, err = s.client.PutObject(ctx, s.bucket, s.prefix+key, io.MultiReader(bytes.NewReader(head), r), -1, o)
	return wrap("object.Put", key, err)
}

// Get implements object.Store. The request names the version that Head returned, so that data of
// two versions are not mixed.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := object.CheckKey(key); err != nil {
		return nil, err
	}
	var o *minio.Object
	err := retry(ctx, func() (err error) {
		o, err = s.client.GetObject(ctx, s.bucket, s.prefix+key, minio.GetObjectOptions{})
		if err == nil {
			_, err = o.Stat()
			if err != nil {
				o.Close()
			}
		}
		return wrap("object.Get", key, err)
	})
	if err != nil {
		return nil, err
	}
	return &body{o, key}, nil
}

// A body wraps the errors of an object that is read.
type body struct {
	*minio.Object
	key string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Object.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = wrap("object.Get", b.key, err)
	}
	return n, err
}

// Head implements object.Store.
func (s *Store) Head(ctx context.Context, key string) (object.Info, error) {
	if err := object.CheckKey(key); err != nil {
		return object.Info{}, err
	}
	var info minio.ObjectInfo
	err := retry(ctx, func() (err error) {
		info, err = s.client.StatObject(ctx, s.bucket, s.prefix+key, minio.StatObjectOptions{})
		return wrap("object.Head", key, err)
	})
	if err != nil {
		return object.Info{}, err
	}
	return object.Info{Key: key, Size: info.Size, Modified: info.LastModified}, nil
}

// Delete implements object.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := object.CheckKey(key); err != nil {
		return err
	}
	err := retry(ctx, func() error {
		return wrap("object.Delete", key, s.client.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{}))
	})
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// List implements object.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[object.Info, error] {
	return func(yield func(object.Info, error) bool) {
		for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
			if o.Err != nil {
				yield(object.Info{}, wrap("object.List", prefix, o.Err))
				return
			}
			if !yield(object.Info{Key: strings.TrimPrefix(o.Key, s.prefix), Size: o.Size, Modified: o.LastModified}, nil) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(object.Info{}, context.Cause(ctx))
		}
	}
}
