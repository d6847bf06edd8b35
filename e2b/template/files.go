package template

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/dirs"
)

// linkTime is the lifetime of an upload link.
const linkTime = time.Hour

// files stores the files that clients sent for their builds. Each team has its own, by the hash
// that the client computed: DIR/TEAM/HASH.DIGEST, where the daemon computed the digest.
type files struct {
	dir   string
	limit int64 // maximum bytes of one archive
	total int64 // maximum bytes of a team's archives
	key   [32]byte

	mu sync.Mutex // held while files are added and removed
}

func openFiles(dir string, limit int64) (*files, error) {
	f := &files{dir: dir, limit: limit, total: 8 * limit}
	rand.Read(f.key[:]) // never fails
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of uploads: %w", err)
	}
	half, err := filepath.Glob(filepath.Join(dir, "*", ".part-*"))
	if err != nil {
		return nil, fmt.Errorf("list incomplete uploads: %w", err)
	}
	for _, name := range half { // incomplete uploads of an earlier daemon
		if err := os.Remove(name); err != nil {
			return nil, fmt.Errorf("remove an incomplete upload: %w", err)
		}
	}
	return f, nil
}

// sign returns a token to upload a team's files with that hash. The token is valid until end.
func (f *files) sign(team id.Token, hash string, end time.Time) string {
	text := string(team) + "." + hash + "." + strconv.FormatInt(end.Unix(), 10)
	return text + "." + f.mac(text)
}

func (f *files) mac(text string) string {
	m := hmac.New(sha256.New, f.key[:])
	io.WriteString(m, text)
	return hex.EncodeToString(m.Sum(nil))
}

// signed verifies a token. It returns fault.Denied if the token is invalid or has expired.
func (f *files) signed(link string) (team id.Token, hash string, err error) {
	refused := fault.Newf(fault.Denied, "template.signed", "", "this upload link is invalid or has expired")
	i := strings.LastIndexByte(link, '.')
	if i < 0 || !hmac.Equal([]byte(f.mac(link[:i])), []byte(link[i+1:])) {
		return "", "", refused
	}
	parts := strings.Split(link[:i], ".")
	end, err := strconv.ParseInt(parts[len(parts)-1], 10, 64)
	if err != nil || time.Now().Unix() > end {
		return "", "", refused
	}
	return id.Token(parts[0]), parts[1], nil
}

// find returns the archive of a team's files, and its digest. It returns fault.NotFound if the
// files were not sent or have been removed.
func (f *files) find(team id.Token, hash string) (name, digest string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.findNow(team, hash)
}

func (f *files) findNow(team id.Token, hash string) (name, digest string, err error) {
	found, err := filepath.Glob(filepath.Join(f.dir, string(team), hash+".*"))
	if err != nil {
		return "", "", fmt.Errorf("find the archive %s: %w", hash, err)
	}
	if len(found) == 0 {
		return "", "", missing("the files %s were not sent or have been removed", short(hash))
	}
	name = found[0]
	now := time.Now()
	if err := os.Chtimes(name, now, now); err != nil { // marks the archive as used
		return "", "", fmt.Errorf("mark the archive as used: %w", err)
	}
	return name, strings.TrimPrefix(filepath.Ext(name), "."), nil
}

// open is like find, but also opens the archive. A later removal does not affect the open file.
func (f *files) open(team id.Token, hash string) (*os.File, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, digest, err := f.findNow(team, hash)
	if err != nil {
		return nil, "", err
	}
	file, err := os.Open(name)
	return file, digest, err
}

// put stores an archive of a team, in place of an earlier one with the same hash.
func (f *files) put(ctx context.Context, team id.Token, hash string, r io.Reader) (err error) {
	dir := filepath.Join(f.dir, string(team))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of uploads: %w", err)
	}
	part, err := os.CreateTemp(dir, ".part-")
	if err != nil {
		return fmt.Errorf("create a file for the upload: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part.Name()))
		}
	}()
	digest, err := pack(ctx, r, part, f.limit)
	if err == nil {
		err = part.Sync()
	}
	err = errors.Join(err, part.Close())
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	name := filepath.Join(dir, hash+"."+digest)
	old, err := filepath.Glob(filepath.Join(dir, hash+".*"))
	if err != nil {
		return fmt.Errorf("list earlier archives of %s: %w", hash, err)
	}
	if err := os.Rename(part.Name(), name); err != nil {
		return fmt.Errorf("put the archive in place: %w", err)
	}
	for _, o := range old {
		if o != name {
			os.Remove(o) // otherwise sweep removes it
		}
	}
	if err := dirs.Sync(dir); err != nil {
		return fmt.Errorf("sync the directory of uploads: %w", err)
	}
	return f.evict(dir, name)
}

// evict removes a team's least recently used archives while the team is above its limit. It
// keeps the archive that was just sent.
func (f *files) evict(dir, just string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the archives of the team: %w", err)
	}
	var all []fs.FileInfo
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(e.Name(), ".part-") {
			continue
		}
		if err != nil {
			return err
		}
		all, total = append(all, info), total+info.Size()
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range all {
		if total <= f.total {
			return nil
		}
		if info.Name() == filepath.Base(just) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the least recently used archive: %w", err)
		}
		total -= info.Size()
	}
	return nil
}

// removeUnused removes archives that were not used since then.
func (f *files) removeUnused(since time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, err := filepath.Glob(filepath.Join(f.dir, "*", "*.*"))
	if err != nil {
		return fmt.Errorf("list the archives: %w", err)
	}
	var errs []error
	for _, name := range found {
		info, err := os.Stat(name)
		if err == nil && info.ModTime().Before(since) && !strings.HasPrefix(info.Name(), ".part-") {
			err = os.Remove(name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
