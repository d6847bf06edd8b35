package chain

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// headEvery is how often a checkpoint is copied to the head file and the journal.
const headEvery = time.Minute

// maxHeadLine bounds one line of a head file. Lines are about 300 bytes.
const maxHeadLine = 4096

// A headLine is one line of a head file.
type headLine struct {
	Time       time.Time `json:"time"`
	Checkpoint string    `json:"checkpoint"`
}

// ReadHead returns the largest checkpoint in a head file that key has signed, or one of Size 0 if
// the file has none. The file is outside of the data directory, so a database that was truncated
// or rolled back has fewer entries than its head. Invalid lines, such as one that a crash
// truncated, are ignored: a larger head cannot be forged without the key.
func ReadHead(name string, key PublicKey) (Checkpoint, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, nil
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("read the head of the audit log: %w", err)
	}
	defer f.Close()
	var newest Checkpoint
	lines := bufio.NewReaderSize(f, maxHeadLine)
	for {
		line, err := lines.ReadSlice('\n')
		var l headLine
		if json.Unmarshal(line, &l) == nil {
			head, signed := key.Open(l.Checkpoint)
			if signed == nil && head.Size > newest.Size {
				newest = Checkpoint{Size: head.Size, Note: l.Checkpoint}
			}
		}
		switch {
		case err == io.EOF:
			return newest, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return Checkpoint{}, fmt.Errorf("read the head of the audit log: %w", err)
		}
	}
}

// appendHead adds a checkpoint to the head file. It only appends, so that the file can
// belong to another user, or have the append-only attribute (chattr +a).
func appendHead(name string, cp Checkpoint) error {
	line, err := json.Marshal(headLine{time.Now().UTC(), cp.Note})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	// A newline first: a crash may have truncated the last line.
	_, err = f.Write(append(append([]byte("\n"), line...), '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// checkHead compares the database with the head file.
func (c *Chain) checkHead(ctx context.Context) error {
	if c.headFile == "" {
		return nil
	}
	cp, err := ReadHead(c.headFile, c.key.public)
	if err != nil || cp.Size == 0 {
		return err
	}
	c.published = cp.Size
	head, err := c.key.public.Open(cp.Note)
	if err != nil {
		return err
	}
	rolledBack := func(format string, args ...any) error {
		return &fault.Error{
			Op: "chain.Open", Kind: fault.Conflict,
			Err:    fmt.Errorf("the audit log was rolled back or changed: "+format, args...),
			Remedy: "run: glasshouse audit verify --offline --checkpoint " + c.headFile + "; to continue with the shorter log, move that file away and keep it as evidence",
		}
	}
	if head.Size > c.tip.seq {
		return rolledBack("%s was signed over %d entries, and the database has %d", c.headFile, head.Size, c.tip.seq)
	}
	root, err := rootAt(ctx, c.store, head.Size)
	if err != nil {
		return damagedUnless(ctx, err)
	}
	if root != head.Root {
		return rolledBack("the first %d entries are not those of %s", head.Size, c.headFile)
	}
	return nil
}

// publish copies the newest checkpoint out of the database: to the log, which on most hosts is the
// journal of another user, and to the head file, if one is configured. A failure of one does not
// prevent the other. Only the writer calls it.
func (c *Chain) publish(now bool) {
	cp := c.Latest()
	if cp.Size <= c.published || !now && time.Since(c.publishedAt) < headEvery {
		return
	}
	c.publishedAt = time.Now()
	head, err := c.key.public.Open(cp.Note)
	if err == nil {
		c.log.Info("head of the audit log", "entries", head.Size, "root", head.Root.String(), "checkpoint", cp.Note)
		if c.headFile != "" {
			err = appendHead(c.headFile, cp)
		}
	}
	if err != nil {
		c.log.Error("the head of the audit log was not written", "file", c.headFile, "err", err)
		return
	}
	c.published = cp.Size
}
