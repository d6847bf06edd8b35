package wire

import "time"

// File describes a file in a jail.
type File struct {
	Path   string    `json:"path" required:"true"`
	Name   string    `json:"name" required:"true"`
	Type   string    `json:"type" required:"true" enum:"file,dir,symlink,fifo,socket,char,block"`
	Mode   string    `json:"mode" required:"true" description:"Permission bits with setuid, setgid and sticky, in octal."`
	Size   int64     `json:"size" required:"true"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty" description:"Target of a symlink."`
}

// MoveFile renames a file in a jail.
type MoveFile struct {
	From    string `json:"from" required:"true"`
	To      string `json:"to" required:"true"`
	Replace bool   `json:"replace,omitempty" description:"Replace an existing file at 'to'. Otherwise an existing file is a conflict."`
}

// EventChange is the name of the events of a watch. The data of each is a FileEvent.
const EventChange = "change"

// FileEvent is a file change that a watch reports.
type FileEvent struct {
	Path string `json:"path" required:"true"`
	Op   string `json:"op" required:"true" enum:"create,write,delete,rename,attrib,overflow" description:"overflow: some changes were lost."`
	Dir  bool   `json:"dir,omitempty"`
}
