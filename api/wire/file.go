package wire

import "time"

// File describes a file in a jail.
type File struct {
	Path   string    `json:"path" required:"true"`
	Name   string    `json:"name" required:"true"`
	Type   string    `json:"type" required:"true" enum:"file,dir,symlink,fifo,socket,char,block"`
	Mode   string    `json:"mode" required:"true" description:"Permission bits with setuid, setgid and sticky, octal."`
	Size   int64     `json:"size" required:"true"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty" description:"Of a symlink."`
}

// MoveFile renames a file in a jail.
type MoveFile struct {
	From    string `json:"from" required:"true"`
	To      string `json:"to" required:"true"`
	Replace bool   `json:"replace,omitempty" description:"Otherwise a file at 'to' is a conflict."`
}

// EventChange names the events of a watch; each is a FileEvent.
const EventChange = "change"

// FileEvent is one change that a watch saw.
type FileEvent struct {
	Path string `json:"path" required:"true"`
	Op   string `json:"op" required:"true" enum:"create,write,delete,rename,attrib,overflow" description:"overflow: some were missed."`
	Dir  bool   `json:"dir,omitempty"`
}
