package microvm

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"glasshouse/fault"
)

// Offsets in the file of a packed kernel, which the kernel's Documentation/arch/x86/boot.rst describes.
const (
	setupSectors  = 0x1f1
	setupMagic    = 0x202
	payloadOffset = 0x248
	payloadLength = 0x24c
	setupEnd      = 0x250

	maxKernel = 512 << 20 // bytes of an unpacked kernel
)

// unpackKernel writes the ELF file in a packed kernel.
func unpackKernel(to io.Writer, packed *os.File) error {
	refuse := func(why string) error {
		return fault.Cannot("microvm.unpackKernel", why, "use Debian's package linux-image-cloud-amd64")
	}
	head := make([]byte, setupEnd)
	if _, err := packed.ReadAt(head, 0); err != nil || string(head[setupMagic:setupMagic+4]) != "HdrS" {
		return refuse("the file is no kernel for x86")
	}
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint32(head[at:])) }
	const sizeField = 4 // of the unpacked kernel, at the end of the payload
	start, length := (int64(head[setupSectors])+1)*512+number(payloadOffset), number(payloadLength)-sizeField
	in := io.NewSectionReader(packed, start, length)
	magic := make([]byte, 4)
	if _, err := in.ReadAt(magic, 0); err != nil {
		return refuse("the kernel has no payload")
	}
	var out io.Reader
	var err error
	switch {
	case bytes.HasPrefix(magic, []byte("\x7fELF")):
		out = in
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, zstdErr := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxKernel), zstd.WithDecoderConcurrency(1))
		if zstdErr != nil {
			return zstdErr
		}
		defer d.Close()
		out = d
	case bytes.Equal(magic, []byte{0x02, 0x21, 0x4c, 0x18}): // a legacy frame
		out = lz4.NewReader(in)
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		out, err = gzip.NewReader(io.NewSectionReader(packed, start, length+sizeField)) // the size is part of it
	default:
		err = refuse(fmt.Sprintf("the kernel is compressed in an unknown way: its payload begins with %x", magic))
	}
	if err != nil {
		return err
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "\x7fELF" {
		return refuse("the payload of the kernel is no ELF file")
	}
	n, err := io.Copy(to, io.MultiReader(bytes.NewReader(first), io.LimitReader(out, maxKernel)))
	if err == nil && n >= maxKernel {
		err = refuse("the kernel is too large")
	}
	return err
}
