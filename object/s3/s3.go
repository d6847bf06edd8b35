// Package s3 stores objects in an S3-compatible service.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
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
	api    *minio.Core
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
	api, err := minio.NewCore(endpoint.Host, &minio.Options{
		Creds:  credentials.New(&required{credentials.Chain{Providers: []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}}}}),
		Secure: endpoint.Scheme == "https", Region: q.Get("region"),
		MaxRetries: 1, // the client would send a reader again that a failed request may still read
	})
	if err != nil {
		return nil, invalid("%w", err)
	}
	return &Store{api, u.Host, prefix}, nil
}

// required are the credentials of a chain. Without any, requests fail instead of being sent
// without a signature.
type required struct{ credentials.Chain }

func (c *required) RetrieveWithCredContext(ctx *credentials.CredContext) (credentials.Value, error) {
	v, err := c.Chain.RetrieveWithCredContext(ctx)
	if err == nil && v.AccessKeyID == "" {
		err = &fault.Error{Op: "s3.Open", Kind: fault.Unavailable, Err: errors.New("no credentials for S3"),
			Remedy: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or create ~/.aws/credentials"}
	}
	return v, err
}

// wrap gives an error of the service its kind.
func (s *Store) wrap(op, key string, err error) error {
	if err == nil || fault.KindOf(err) != "" {
		return err
	}
	r, answered := errors.AsType[minio.ErrorResponse](err)
	e := &fault.Error{Op: op, Kind: fault.Unavailable, On: key, Err: err}
	switch {
	case !answered:
	case r.Code == minio.NoSuchKey:
		return fault.Newf(fault.NotFound, op, key, "no such object")
	case r.Code == minio.NoSuchBucket:
		e.Remedy = "create the bucket " + s.bucket
	case r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		// Not fault.Denied: it is not the user who is refused.
		e.Remedy = "check the credentials, and that they may read, write, list and delete objects of the bucket"
	case r.StatusCode == http.StatusInsufficientStorage || r.Code == "QuotaExceeded":
		e.Kind = fault.NoSpace
	case r.Code == minio.AuthorizationHeaderMalformed || r.StatusCode == http.StatusMovedPermanently:
		e.Remedy = "set the region of the bucket in the URL"
	}
	return e
}

// attempts is how often a request is sent that the service did not answer properly, and backoff
// half the time before the second.
const (
	attempts = 5
	backoff  = 100 * time.Millisecond
)

// retry calls do, which sends one request, until the service has answered it.
func (s *Store) retry(ctx context.Context, op, key string, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		if err == nil || n == attempts || !transient(err) {
			return s.wrap(op, key, err)
		}
		select {
		case <-time.After(backoff<<n + rand.N(backoff)):
		case <-ctx.Done():
			return s.wrap(op, key, err)
		}
	}
}

// transient reports whether the same request can succeed later.
func transient(err error) bool {
	r, answered := errors.AsType[minio.ErrorResponse](err)
	if !answered {
		return fault.KindOf(err) == ""
	}
	switch r.Code {
	case "InternalError", "SlowDown", "RequestTimeout", "ServiceUnavailable", "OperationAborted": // even with status 200, of CompleteMultipartUpload
		return true
	case "QuotaExceeded":
		return false
	}
	return r.StatusCode >= 500 && r.StatusCode != http.StatusNotImplemented && r.StatusCode != http.StatusInsufficientStorage ||
		r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusRequestTimeout
}

// partSize is the size of the parts of a larger object, which are sent one after the other. One
// is in memory at a time. An object has at most 10 000 parts, hence 320 GB.
const (
	partSize = 32 << 20
	maxParts = 10_000
)

// Put implements object.Store. Each request has digests of its data, and is signed with one.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) error {
	const op = "object.Put"
	if err := object.CheckKey(key); err != nil {
		return err
	}
	data, more, err := readPart(ctx, r)
	if err != nil {
		return s.wrap(op, key, err)
	}
	if more {
		return s.putParts(ctx, op, key, data, r)
	}
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true, UserMetadata: map[string]string{"x-amz-checksum-crc32c": crc(data)}}
	return s.retry(ctx, op, key, func() error {
		_, err := s.api.PutObject(ctx, s.bucket, s.prefix+key, bytes.NewReader(data), int64(len(data)), "", sha(data), o)
		return err
	})
}

// readPart reads the next part, and reports whether more may follow. Each part has memory of its
// own, because a request that failed may still be read.
func readPart(ctx context.Context, r io.Reader) (data []byte, more bool, err error) {
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	var b bytes.Buffer
	_, err = io.CopyN(&b, r, partSize)
	if errors.Is(err, io.EOF) {
		return b.Bytes(), false, nil
	}
	return b.Bytes(), true, err
}

// putParts stores an object that consists of data and what r returns.
func (s *Store) putParts(ctx context.Context, op, key string, data []byte, r io.Reader) (err error) {
	name := s.prefix + key
	var upload string
	err = s.retry(ctx, op, key, func() (err error) {
		upload, err = s.api.NewMultipartUpload(ctx, s.bucket, name, minio.PutObjectOptions{ContentType: "application/octet-stream", UserMetadata: map[string]string{
			"x-amz-checksum-algorithm": "CRC32C", "x-amz-checksum-type": "FULL_OBJECT",
		}})
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			s.api.AbortMultipartUpload(ctx, s.bucket, name, upload) // a rule of the bucket removes it otherwise
		}
	}()
	var parts []minio.CompletePart
	for more := true; len(data) > 0; {
		n := len(parts) + 1
		if n > maxParts {
			return fault.Newf(fault.TooLarge, op, key, "the object has more than %d bytes", maxParts*partSize)
		}
		err := s.retry(ctx, op, key, func() error {
			part, err := s.api.PutObjectPart(ctx, s.bucket, name, upload, n, bytes.NewReader(data), int64(len(data)), minio.PutObjectPartOptions{
				Sha256Hex: sha(data), DisableContentSha256: true, CustomHeader: http.Header{"X-Amz-Checksum-Crc32c": {crc(data)}},
			})
			if err == nil {
				parts = append(parts, minio.CompletePart{PartNumber: n, ETag: part.ETag, ChecksumCRC32C: part.ChecksumCRC32C})
			}
			return err
		})
		if err != nil {
			return err
		}
		data = nil
		if more {
			data, more, err = readPart(ctx, r)
			if err != nil {
				return s.wrap(op, key, err)
			}
		}
	}
	return s.retry(ctx, op, key, func() error {
		_, err := s.api.CompleteMultipartUpload(ctx, s.bucket, name, upload, parts, minio.PutObjectOptions{})
		return err
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(data []byte) string { return encodeCRC(crc32.Checksum(data, castagnoli)) }

func encodeCRC(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

func sha(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Get implements object.Store. All data are from one response, hence of one version.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	const op = "object.Get"
	if err := object.CheckKey(key); err != nil {
		return nil, err
	}
	var o minio.GetObjectOptions
	o.Set("x-amz-checksum-mode", "ENABLED")
	var in io.ReadCloser
	var info minio.ObjectInfo
	err := s.retry(ctx, op, key, func() (err error) {
		in, info, _, err = s.api.GetObject(ctx, s.bucket, s.prefix+key, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	b := &body{ReadCloser: in, left: info.Size, fail: func(err error) error { return s.wrap(op, key, err) }}
	if !strings.Contains(info.ChecksumCRC32C, "-") { // otherwise it is the checksum of checksums of parts
		b.want = info.ChecksumCRC32C
	}
	return b, nil
}

// A body is the content of an object. It verifies the length and, if want is set, the checksum.
type body struct {
	io.ReadCloser
	left int64
	want string
	sum  uint32
	fail func(error) error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	b.sum = crc32.Update(b.sum, castagnoli, p[:n])
	switch {
	case err == nil:
		return n, nil
	case err != io.EOF:
		return n, b.fail(err)
	case b.left != 0:
		return n, b.fail(io.ErrUnexpectedEOF)
	case b.want != "" && b.want != encodeCRC(b.sum):
		return n, b.fail(fmt.Errorf("the data have the CRC-32C %s, not %s", encodeCRC(b.sum), b.want))
	}
	return n, io.EOF
}

// Head implements object.Store.
func (s *Store) Head(ctx context.Context, key string) (object.Info, error) {
	if err := object.CheckKey(key); err != nil {
		return object.Info{}, err
	}
	var info minio.ObjectInfo
	err := s.retry(ctx, "object.Head", key, func() (err error) {
		info, err = s.api.StatObject(ctx, s.bucket, s.prefix+key, minio.StatObjectOptions{})
		return err
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
	err := s.retry(ctx, "object.Delete", key, func() error {
		return s.api.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{})
	})
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// List implements object.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[object.Info, error] {
	return func(yield func(object.Info, error) bool) {
		for o := range s.api.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
			if o.Err != nil {
				yield(object.Info{}, s.wrap("object.List", prefix, o.Err))
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
