package wasi

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Name is the name of the module from which modules import the functions of preview 1.
const Name = "wasi_snapshot_preview1"

// functions are all functions of WASI preview 1 with their parameters. They return an errno,
// except proc_exit, which does not return.
var functions = map[string]struct {
	params string // i: 32 bits, I: 64 bits
	do     func(*call) errno
}{
	"args_get":                {"ii", argsGet},
	"args_sizes_get":          {"ii", argsSizesGet},
	"clock_res_get":           {"ii", clockResGet},
	"clock_time_get":          {"iIi", clockTimeGet},
	"environ_get":             {"ii", environGet},
	"environ_sizes_get":       {"ii", environSizesGet},
	"fd_advise":               {"iIIi", fdAdvise},
	"fd_allocate":             {"iII", fdAllocate},
	"fd_close":                {"i", fdClose},
	"fd_datasync":             {"i", fdDatasync},
	"fd_fdstat_get":           {"ii", fdFdstatGet},
	"fd_fdstat_set_flags":     {"ii", fdFdstatSetFlags},
	"fd_fdstat_set_rights":    {"iII", fdFdstatSetRights},
	"fd_filestat_get":         {"ii", fdFilestatGet},
	"fd_filestat_set_size":    {"iI", fdFilestatSetSize},
	"fd_filestat_set_times":   {"iIIi", fdFilestatSetTimes},
	"fd_pread":                {"iiiIi", fdPread},
	"fd_prestat_dir_name":     {"iii", fdPrestatDirName},
	"fd_prestat_get":          {"ii", fdPrestatGet},
	"fd_pwrite":               {"iiiIi", fdPwrite},
	"fd_read":                 {"iiii", fdRead},
	"fd_readdir":              {"iiiIi", fdReaddir},
	"fd_renumber":             {"ii", fdRenumber},
	"fd_seek":                 {"iIii", fdSeek},
	"fd_sync":                 {"i", fdSync},
	"fd_tell":                 {"ii", fdTell},
	"fd_write":                {"iiii", fdWrite},
	"path_create_directory":   {"iii", pathCreateDirectory},
	"path_filestat_get":       {"iiiii", pathFilestatGet},
	"path_filestat_set_times": {"iiiiIIi", pathFilestatSetTimes},
	"path_link":               {"iiiiiii", pathLink},
	"path_open":               {"iiiiiIIii", pathOpen},
	"path_readlink":           {"iiiiii", pathReadlink},
	"path_remove_directory":   {"iii", pathRemoveDirectory},
	"path_rename":             {"iiiiii", pathRename},
	"path_symlink":            {"iiiii", pathSymlink},
	"path_unlink_file":        {"iii", pathUnlinkFile},
	"poll_oneoff":             {"iiii", pollOneoff},
	"proc_exit":               {"i", procExit},
	"proc_raise":              {"i", procRaise},
	"random_get":              {"ii", randomGet},
	"sched_yield":             {"", schedYield},
	"sock_accept":             {"iii", sockAny},
	"sock_recv":               {"iiiiii", sockAny},
	"sock_send":               {"iiiii", sockAny},
	"sock_shutdown":           {"ii", sockAny},
}

// Instantiate adds the functions of preview 1 to a runtime. They use the Process in the
// context of the call into the module; see With.
func Instantiate(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(Name)
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		f := functions[name]
		params := make([]api.ValueType, len(f.params))
		for i, c := range f.params {
			params[i] = api.ValueTypeI32
			if c == 'I' {
				params[i] = api.ValueTypeI64
			}
		}
		results := []api.ValueType{api.ValueTypeI32}
		if name == "proc_exit" {
			results = nil
		}
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
			c := call{ctx: ctx, mod: mod, args: stack, p: processOf(ctx)}
			n := f.do(&c)
			if len(results) > 0 {
				stack[0] = uint64(n)
			}
		}), params, results).Export(name)
	}
	if _, err := b.Instantiate(ctx); err != nil {
		return fmt.Errorf("instantiate %s: %w", Name, err)
	}
	return nil
}

// A call is one call of a module to a function of preview 1.
type call struct {
	ctx  context.Context
	mod  api.Module
	p    *Process
	args []uint64
}

func (c *call) u32(i int) uint32 { return uint32(c.args[i]) }
func (c *call) u64(i int) uint64 { return c.args[i] }

// memory returns a slice of the module's memory, or false if the range is out of bounds.
func (c *call) memory(at, length uint32) ([]byte, bool) {
	m := c.mod.Memory()
	if m == nil {
		return nil, false
	}
	return m.Read(at, length)
}

// put32 and put64 write a number to the module's memory.
func (c *call) put32(at, v uint32) errno {
	b, ok := c.memory(at, 4)
	if !ok {
		return eFault
	}
	binary.LittleEndian.PutUint32(b, v)
	return eOK
}

func (c *call) put64(at uint32, v uint64) errno {
	b, ok := c.memory(at, 8)
	if !ok {
		return eFault
	}
	binary.LittleEndian.PutUint64(b, v)
	return eOK
}

// file returns the file whose descriptor is argument i.
func (c *call) file(i int) (*file, errno) { return c.p.file(c.u32(i)) }

// most is the maximum number of buffers of a read or write, which is IOV_MAX of Linux
// (readv(2)).
const most = 1024

// buffers returns the non-empty buffers of an iovec array.
func (c *call) buffers(at, count uint32) ([][]byte, errno) {
	if count > most {
		count = most
	}
	list, ok := c.memory(at, 8*count)
	if !ok {
		return nil, eFault
	}
	bufs := make([][]byte, 0, count)
	for ; len(list) > 0; list = list[8:] {
		length := binary.LittleEndian.Uint32(list[4:])
		if length == 0 {
			continue
		}
		b, ok := c.memory(binary.LittleEndian.Uint32(list), length)
		if !ok {
			return nil, eFault
		}
		bufs = append(bufs, b)
	}
	return bufs, eOK
}

// answer returns the errno for the error of a system call. It records an exceeded quota for
// Process.Full.
func (c *call) answer(err error) errno {
	n := number(err)
	if n == eDquot {
		c.p.full = true
	}
	return n
}

// Has reports whether name is a function of preview 1.
func Has(name string) bool {
	_, ok := functions[name]
	return ok
}
