package jailinit

import (
	"context"
	"fmt"
	"io"

	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

// A fileService serves the files of the jail.
type fileService struct {
	root  *jailfs.Root
	slots chan struct{} // one per blocking operation
}

func (fs *fileService) stat(c *conn, q *protocol.Request) error {
	fs.slots <- struct{}{}
	info, err := fs.root.Stat(context.Background(), q.Path)
	<-fs.slots
	if err != nil {
		return err
	}
	return c.reply(info)
}

// listBatch is the number of entries per frame.
const listBatch = 100

func (fs *fileService) listDir(c *conn, q *protocol.Request) error {
	fs.slots <- struct{}{}
	infos, more, err := fs.root.List(context.Background(), q.Path, q.After, int(q.Limit))
	<-fs.slots
	if err != nil {
		return err
	}
	for len(infos) > 0 {
		n := min(listBatch, len(infos))
		if err := c.reply(infos[:n]); err != nil {
			return nil
		}
		infos = infos[n:]
	}
	return c.end(protocol.Listed{More: more})
}

func (fs *fileService) readFile(c *conn, q *protocol.Request) error {
	fs.slots <- struct{}{}
	f, info, err := fs.root.Read(context.Background(), q.Path, q.Offset, q.Limit)
	<-fs.slots
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.reply(info); err != nil {
		return nil
	}
	buf := make([]byte, protocol.MaxData)
	for {
		fs.slots <- struct{}{}
		n, err := f.Read(buf)
		<-fs.slots
		// The slot was released: a slow client must not block the few slots for files.
		if c.w.Data(buf[:n]) != nil {
			return nil
		}
		if err == io.EOF {
			return c.end(nil)
		}
		if err != nil {
			return err
		}
	}
}

func (fs *fileService) writeFile(c *conn, q *protocol.Request) error {
	var options protocol.WriteOptions
	if q.Write != nil {
		options = *q.Write
	}
	if err := c.reply(nil); err != nil {
		return nil
	}
	fs.slots <- struct{}{}
	info, err := fs.root.Write(context.Background(), q.Path, &upload{fs: fs, c: c}, options)
	<-fs.slots
	if err != nil {
		return err
	}
	return c.end(info)
}

// An upload reads the bytes that the client sends up to its End frame. Its reader holds a file
// slot, which is released while it waits for the network.
type upload struct {
	fs   *fileService
	c    *conn
	left []byte
	done bool
}

func (u *upload) Read(p []byte) (int, error) {
	<-u.fs.slots
	defer func() { u.fs.slots <- struct{}{} }()
	for len(u.left) == 0 {
		if u.done {
			return 0, io.EOF
		}
		kind, payload, err := u.c.r.Next()
		if err != nil {
			return 0, io.ErrUnexpectedEOF // the client has disconnected before the End frame
		}
		switch kind {
		case protocol.FrameData:
			u.left = payload
		case protocol.FrameEnd:
			u.done = true
		default:
			return 0, fmt.Errorf("%w: kind %d in an upload", protocol.ErrMalformed, kind)
		}
	}
	n := copy(p, u.left)
	u.left = u.left[n:]
	return n, nil
}

func (fs *fileService) mkdir(c *conn, q *protocol.Request) error {
	return fs.change(c, func() error {
		if q.Owner != nil {
			return fs.root.MkdirFor(context.Background(), q.Path, *q.Owner)
		}
		return fs.root.Mkdir(context.Background(), q.Path, q.Mode, q.Parents)
	})
}

func (fs *fileService) remove(c *conn, q *protocol.Request) error {
	return fs.change(c, func() error {
		return fs.root.Remove(context.Background(), q.Path, q.Recursive)
	})
}

func (fs *fileService) move(c *conn, q *protocol.Request) error {
	return fs.change(c, func() error {
		return fs.root.Move(context.Background(), q.Path, q.To, q.Replace)
	})
}

func (fs *fileService) change(c *conn, do func() error) error {
	fs.slots <- struct{}{}
	err := do()
	<-fs.slots
	if err != nil {
		return err
	}
	return c.reply(nil)
}

func (fs *fileService) tar(c *conn, q *protocol.Request) error {
	fs.slots <- struct{}{}
	// Checked before the reply: a missing path is then an error of Client.Tar and not of a later
	// Read.
	_, err := fs.root.Stat(context.Background(), q.Path)
	<-fs.slots
	if err != nil {
		return err
	}
	if err := c.reply(nil); err != nil {
		return nil
	}
	fs.slots <- struct{}{}
	err = fs.root.WriteTar(context.Background(), q.Path, &download{fs, c})
	<-fs.slots
	if err != nil {
		return err
	}
	return c.end(nil)
}

// A download sends bytes to the client. Its writer holds a file slot, which is released while
// it waits for the network.
type download struct {
	fs *fileService
	c  *conn
}

func (d *download) Write(p []byte) (int, error) {
	<-d.fs.slots
	defer func() { d.fs.slots <- struct{}{} }()
	if err := d.c.w.Data(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (fs *fileService) untar(c *conn, q *protocol.Request) error {
	if err := c.reply(nil); err != nil {
		return nil
	}
	fs.slots <- struct{}{}
	err := fs.root.Untar(context.Background(), q.Path, &upload{fs: fs, c: c})
	<-fs.slots
	if err != nil {
		return err
	}
	return c.end(nil)
}
