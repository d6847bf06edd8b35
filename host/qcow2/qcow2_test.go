package qcow2_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/qcow2"
)

// filled returns a cluster of one byte.
func filled(b byte) []byte { return bytes.Repeat([]byte{b}, cluster) }

// randomCluster returns a cluster with few bytes that are not zero.
func randomCluster(r *rand.Rand) []byte {
	b := make([]byte, cluster)
	for range 1 + r.IntN(5) {
		b[r.IntN(cluster)] = byte(1 + r.IntN(255))
	}
	return b
}

// checkDisk reports differences between the content of a disk and what it should be.
func checkDisk(t *testing.T, got, want map[int64][]byte) {
	t.Helper()
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Fatalf("clusters with data = %v, want %v", g, w)
	}
	for i, b := range want {
		if !bytes.Equal(got[i], b) {
			t.Errorf("the content of cluster %d differs", i)
		}
	}
}

// flatten merges layers into a new file.
func flatten(t testing.TB, layers ...*os.File) (*os.File, error) {
	t.Helper()
	to := newFile(t)
	return to, qcow2.Flatten(t.Context(), layers, to)
}

func TestCreatedImageIsConsistentAndEmpty(t *testing.T) {
	for _, size := range []int64{512, 1 << 20, span, span + 512, 1<<40 + 512, 16 << 40} {
		f := newFile(t)
		if err := qcow2.Create(f, size); err != nil {
			t.Errorf("Create with %d bytes: %v", size, err)
			continue
		}
		got, disk := contents(t, f)
		if got != size || len(disk) != 0 {
			t.Errorf("image of %d bytes has %d bytes and %d clusters with data, want none", size, got, len(disk))
		}
		got, err := qcow2.Size(f)
		if got != size || err != nil {
			t.Errorf("Size = %d, %v, want %d", got, err, size)
		}
	}
}

func TestSizesThatADiskCannotHaveAreRefused(t *testing.T) {
	for _, size := range []int64{-512, 0, 1, 513, 16<<40 + 512} {
		if err := qcow2.Create(newFile(t), size); !errors.Is(err, fault.Invalid) {
			t.Errorf("Create with %d bytes = %v, want invalid", size, err)
		}
		if err := qcow2.FromRaw(t.Context(), newFile(t), fileOf(t, max(0, size), nil), qcow2.Omit); !errors.Is(err, fault.Invalid) {
			t.Errorf("FromRaw of %d bytes = %v, want invalid", size, err)
		}
	}
}

func TestImagesAreWrittenToEmptyFilesOnly(t *testing.T) {
	full := fileOf(t, 1, nil)
	base := layer(1<<20, nil).write(t)
	for name, err := range map[string]error{
		"Create":               qcow2.Create(full, 512),
		"FromRaw":              qcow2.FromRaw(t.Context(), full, fileOf(t, 512, nil), qcow2.Omit),
		"Flatten":              qcow2.Flatten(t.Context(), []*os.File{base}, full),
		"Flatten to its layer": qcow2.Flatten(t.Context(), []*os.File{base}, base),
	} {
		if !errors.Is(err, fault.Conflict) {
			t.Errorf("%s to a file with content = %v, want a conflict", name, err)
		}
	}
}

func TestImageOfRawFileHasItsContent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int64{512, cluster + 512, 8 << 20, 2*span + 3*cluster + 512} {
		parts := map[int64][]byte{size - 1: {9}, 0: make([]byte, 2*cluster)} // zeros in blocks that exist
		for range 20 {
			parts[r.Int64N(size)] = []byte{byte(r.IntN(256))}
		}
		if size == 512 {
			delete(parts, 0)
		}
		raw := fileOf(t, size, parts)
		want := map[int64][]byte{}
		for at := range parts {
			i := at / cluster
			b := append(read(t, raw, i*cluster, min(cluster, size-i*cluster)), make([]byte, cluster)...)[:cluster]
			if !bytes.Equal(b, filled(0)) {
				want[i] = b
			}
		}
		f := newFile(t)
		if err := qcow2.FromRaw(t.Context(), f, raw, qcow2.Omit); err != nil {
			t.Errorf("FromRaw of %d bytes: %v", size, err)
			continue
		}
		got, disk := contents(t, f)
		if got != size {
			t.Errorf("size of the image of %d bytes = %d", size, got)
		}
		checkDisk(t, disk, want)
	}
}

// TestRawDiskOfLayers checks that a disk of layers has their content, and that an image with hidden zeros
// hides all that is below it.
func TestRawDiskOfLayers(t *testing.T) {
	for _, size := range []int64{512, cluster + 512, 2*span + 3*cluster + 512} {
		below := map[int64][]byte{0: {1}, size - 1: {2}, size / 2: {3}}
		above := map[int64][]byte{size / 3: {4}}
		image := func(parts map[int64][]byte, zeros qcow2.Zeros) (raw, f *os.File) {
			raw, f = fileOf(t, size, parts), newFile(t)
			if err := qcow2.FromRaw(t.Context(), f, raw, zeros); err != nil {
				t.Fatal(err)
			}
			return raw, f
		}
		lowRaw, low := image(below, qcow2.Omit)
		hidingRaw, hiding := image(above, qcow2.HideBelow)
		_, all := image(nil, qcow2.HideBelow)
		overlay := newFile(t)
		if err := qcow2.Create(overlay, size); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			layers []*os.File
			want   *os.File
		}{
			"one layer": {[]*os.File{low}, lowRaw}, "an empty overlay": {[]*os.File{overlay, low}, lowRaw},
			"hidden layer": {[]*os.File{hiding, low}, hidingRaw}, "nothing but zeros": {[]*os.File{all, low}, fileOf(t, size, nil)},
		} {
			to := newFile(t)
			if err := qcow2.ToRaw(t.Context(), to, c.layers); err != nil {
				t.Fatalf("%s of %d bytes: %v", name, size, err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(to.Fd()), &st); err != nil || st.Size != size || st.Blocks*512 > 4*cluster {
				t.Errorf("%s: the disk has %d bytes in %d blocks, %v, want %d bytes and holes", name, st.Size, st.Blocks, err, size)
			}
			for _, parts := range []map[int64][]byte{below, above} { // elsewhere are holes, as the number of blocks shows
				for at := range parts {
					at = at / cluster * cluster
					if n := min(cluster, size-at); !bytes.Equal(read(t, to, at, n), read(t, c.want, at, n)) {
						t.Errorf("%s: the disk of %d bytes differs in the cluster at %d", name, size, at)
					}
				}
			}
		}
	}
}

func TestRefcountBlocksCoverAllClusters(t *testing.T) {
	const perBlock, perCluster = cluster / 2, cluster / 8
	for _, used := range []int64{1, 2, perBlock - 2, perBlock - 1, perBlock, 7 * perBlock, perBlock * perCluster, 1 << 29} {
		blocks, table := qcow2.RefcountClusters(used)
		all := used + blocks + table
		if all > blocks*perBlock || blocks > table*perCluster {
			t.Errorf("%d clusters have %d refcount blocks and %d clusters of table: too few", used, blocks, table)
		}
		if all-1 <= (blocks-1)*perBlock || blocks <= (table-1)*perCluster {
			t.Errorf("%d clusters have %d refcount blocks and %d clusters of table: too many", used, blocks, table)
		}
	}
}

func TestFlattenShowsTheTopmostDataOfEachCluster(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	const size = 3*span + 5*cluster + 512
	last := int64(size / cluster)
	for range 8 {
		model := map[int64][]byte{}
		var files []*os.File
		for range 1 + r.IntN(5) {
			changed := map[int64][]byte{}
			for range r.IntN(12) {
				at := []int64{0, 8190, 8191, 8192, 2 * 8192, last - 4, last - 1}[r.IntN(7)] + r.Int64N(2)
				switch r.IntN(4) {
				case 0:
					changed[at] = nil
				case 1:
					changed[at] = filled(0)
				default:
					changed[at] = randomCluster(r)
				}
			}
			maps.Copy(model, changed)
			files = append(files, layer(size, changed).write(t))
		}
		slices.Reverse(files)
		to, err := flatten(t, files...)
		if err != nil {
			t.Fatalf("Flatten of %d layers: %v", len(files), err)
		}
		if tail := model[last]; tail != nil {
			model[last] = append(slices.Clone(tail[:512]), make([]byte, cluster-512)...)
		}
		maps.DeleteFunc(model, func(_ int64, b []byte) bool { return bytes.Equal(b, filled(0)) || b == nil })
		got, disk := contents(t, to)
		if got != size {
			t.Errorf("size of the merged image = %d, want %d", got, size)
		}
		checkDisk(t, disk, model)
	}
}

func TestZeroFlagHidesDataBelowAndInItsCluster(t *testing.T) {
	const size = 4 * cluster
	base := layer(size, map[int64][]byte{0: filled(1), 1: filled(2), 2: filled(3)}).write(t)
	top := layer(size, map[int64][]byte{0: filled(4), 1: nil})
	for _, entries := range top.l2 {
		entries[0] |= zeroFlag // an allocated cluster that reads as zeros
	}
	to, err := flatten(t, top.write(t), base)
	if err != nil {
		t.Fatal(err)
	}
	_, disk := contents(t, to)
	checkDisk(t, disk, map[int64][]byte{2: filled(3)})
}

func TestLastClusterOfAFileMayBeShort(t *testing.T) {
	m := layer(cluster, map[int64][]byte{0: filled(7)})
	m.data[3*cluster] = filled(7)[:512]
	m.end = 3*cluster + 512
	to, err := flatten(t, m.write(t))
	if err != nil {
		t.Fatal(err)
	}
	_, disk := contents(t, to)
	checkDisk(t, disk, map[int64][]byte{0: append(filled(7)[:512], make([]byte, cluster-512)...)})
}

func TestLayersOfDifferentSizesAreRefused(t *testing.T) {
	_, err := flatten(t, layer(1<<20, nil).write(t), layer(2<<20, nil).write(t))
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("Flatten of 1 MiB over 2 MiB = %v, want invalid", err)
	}
	_, err = flatten(t)
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("Flatten of no layers = %v, want invalid", err)
	}
}

func TestHeadersThatThisPackageNeverWritesAreRefused(t *testing.T) {
	for name, p := range map[string]struct {
		at int64
		b  string
	}{
		"another magic":              {0, "QFI\xfa"},
		"version 2":                  {7, "\x02"},
		"a backing file name":        {15, "\x70"},
		"a length of a backing name": {19, "\x01"},
		"clusters of 32 KiB":         {23, "\x0f"},
		"clusters of 2 MiB":          {23, "\x15"},
		"an odd size":                {31, "\x01"},
		"no size":                    {24, "\x00\x00\x00\x00\x00\x00\x00\x00"},
		"a negative size":            {24, "\xff\xff\xff\xff\xff\xff\xfe\x00"},
		"a huge size":                {24, "\x00\x00\x20"},
		"AES":                        {35, "\x01"},
		"LUKS":                       {35, "\x02"},
		"a short L1 table":           {36, "\x00\x00\x00\x00"},
		"a huge L1 table":            {36, "\xff\xff\xff\xff"},
		"an L1 table in the header":  {40, "\x00\x00\x00\x00\x00\x00\x00\x00"},
		"an L1 table not aligned":    {47, "\x08"},
		"an L1 table after the end":  {40, "\x7f\xff\xff\xff\xff\xff\x00\x00"},
		"an L1 table far away":       {40, "\xff\xff\xff\xff\xff\xff\x00\x00"},
		"an internal snapshot":       {63, "\x01"},
		"the dirty bit":              {79, "\x01"},
		"the corrupt bit":            {79, "\x02"},
		"an external data file":      {79, "\x04"},
		"a compression type":         {79, "\x08"},
		"extended L2 entries":        {79, "\x10"},
		"an unknown feature":         {72, "\x80"},
		"lazy reference counts":      {87, "\x01"},
		"bitmaps":                    {95, "\x01"},
		"8-bit reference counts":     {99, "\x03"},
	} {
		m := layer(1<<20, map[int64][]byte{0: filled(1)})
		m.patches = map[int64][]byte{p.at: []byte(p.b)}
		f := m.write(t)
		if _, err := qcow2.Size(f); !errors.Is(err, fault.Invalid) {
			t.Errorf("Size of an image with %s = %v, want invalid", name, err)
		}
		if _, err := flatten(t, f); !errors.Is(err, fault.Invalid) {
			t.Errorf("Flatten of an image with %s = %v, want invalid", name, err)
		}
	}
	for _, n := range []int64{0, 3, 103, 104, 2*cluster - 1} {
		m := image{size: cluster * 8192 * 8192}
		f := m.write(t)
		if err := f.Truncate(n); err != nil {
			t.Fatal(err)
		}
		if _, err := qcow2.Size(f); !errors.Is(err, fault.Invalid) {
			t.Errorf("Size of the first %d bytes of an image = %v, want invalid", n, err)
		}
	}
}

func TestDamagedTablesAreRefused(t *testing.T) {
	const end = 6 * cluster
	l1 := func(e uint64) image {
		return image{size: 2 * span, l1: map[int64]uint64{0: e}, end: end}
	}
	l2 := func(entries ...uint64) image {
		m := l1(2*cluster | copied)
		m.l2 = map[int64]map[int64]uint64{2 * cluster: {}}
		for i, e := range entries {
			m.l2[2*cluster][int64(i)] = e
		}
		return m
	}
	for name, m := range map[string]image{
		"L1 entry without offset":         l1(copied),
		"L1 entry not aligned":            l1(2*cluster + 512),
		"L1 entry with reserved bits":     l1(2*cluster | 1<<56),
		"L1 entry after the end":          l1(end),
		"L1 entry far after the end":      l1(1<<56 - cluster),
		"compressed cluster":              l2(3*cluster | 1<<62),
		"L2 entry without offset":         l2(copied),
		"L2 entry with low reserved bits": l2(3*cluster | 2),
		"L2 entry not aligned":            l2(3*cluster + 512),
		"L2 entry with reserved bits":     l2(3*cluster | 1<<61),
		"zero flag with reserved bits":    l2(zeroFlag | 1<<57),
		"L2 entry after the end":          l2(end),
		"L2 entry far after the end":      l2(1<<56 - cluster),
		"one cluster used too often":      l2(slices.Repeat([]uint64{3 * cluster}, 8)...),
		"one L2 table used too often": {size: 16 * span, end: end, l1: map[int64]uint64{
			0: 2 * cluster, 1: 2 * cluster, 2: 2 * cluster, 3: 2 * cluster, 4: 2 * cluster, 5: 2 * cluster, 6: 2 * cluster}},
	} {
		if _, err := flatten(t, m.write(t)); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: Flatten = %v, want invalid", name, err)
		}
	}
	if _, err := flatten(t, l2(3*cluster, zeroFlag, 4*cluster|zeroFlag, 4*cluster|copied).write(t)); err != nil {
		t.Errorf("Flatten of an undamaged image: %v", err)
	}
}

func TestCancellationEndsWork(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	for name, err := range map[string]error{
		"Flatten":                 qcow2.Flatten(ctx, []*os.File{layer(1<<20, map[int64][]byte{0: filled(1)}).write(t)}, newFile(t)),
		"Flatten of a huge image": qcow2.Flatten(ctx, []*os.File{image{size: 8 << 40}.write(t)}, newFile(t)),
		"FromRaw":                 qcow2.FromRaw(ctx, newFile(t), fileOf(t, 512, map[int64][]byte{0: {1}}), qcow2.Omit),
	} {
		if !errors.Is(err, stop) {
			t.Errorf("%s after a cancellation = %v, want its cause", name, err)
		}
	}
}

func TestInterruptedWriterLeavesNoImage(t *testing.T) {
	m := layer(1<<20, map[int64][]byte{0: filled(1), 1: filled(2)})
	for _, entries := range m.l2 {
		entries[2] = 1 << 62
	}
	to, err := flatten(t, m.write(t))
	if err == nil {
		t.Fatal("Flatten of a damaged image succeeded")
	}
	if _, err := qcow2.Size(to); !errors.Is(err, fault.Invalid) {
		t.Errorf("Size of its result = %v, want invalid", err)
	}
}

// The test merges a chain of large images, each with several L2 tables.
func TestMemoryDoesNotDependOnTheImages(t *testing.T) {
	var files []*os.File
	for i := range int64(3) {
		files = append(files, layer(1<<40, map[int64][]byte{i: filled(1), 8192 * 100 * i: filled(2), 8192*2048 - 1: filled(3)}).write(t))
	}
	to := newFile(t)
	used := allocated(func() {
		if err := qcow2.Flatten(t.Context(), files, to); err != nil {
			t.Error(err)
		}
	})
	if used > memory {
		t.Errorf("Flatten allocated %d bytes, want at most %d", used, int64(memory))
	}
}

// memory is a limit for the bytes that a call allocates: less than the tables of large images.
const memory = 2 << 20

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestQEMUAcceptsImages(t *testing.T) {
	if _, err := exec.LookPath("qemu-io"); err != nil {
		t.Skip("qemu-io is not installed")
	}
	qemu := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil || strings.Contains(string(out), "failed") {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	const size = span + 1<<20
	raw := fileOf(t, size, map[int64][]byte{1000: {1}, 3 * cluster: filled(2), span + 512: {3}})
	base, top, merged := newFile(t), newFile(t), newFile(t)
	if err := errors.Join(qcow2.FromRaw(t.Context(), base, raw, qcow2.Omit), qcow2.Create(top, size)); err != nil {
		t.Fatal(err)
	}
	qemu("qemu-img", "check", base.Name())
	qemu("qemu-img", "check", top.Name())
	node := func(f *os.File, backing string) string {
		return fmt.Sprintf(`{"driver":"qcow2","file":{"driver":"file","filename":%q},"backing":%s}`, f.Name(), backing)
	}
	chain := "json:" + node(top, node(base, "null"))
	qemu("qemu-io", "-c", "write -P 5 200000 1000", "-c", "write -z 256k 64k", "-c", "write -P 6 512M 4k", "-c", "read -P 2 196608 3392", chain)
	if err := qcow2.Flatten(t.Context(), []*os.File{top, base}, merged); err != nil {
		t.Fatal(err)
	}
	qemu("qemu-img", "check", merged.Name())
	qemu("qemu-img", "compare", chain, merged.Name())
}

// FuzzRead reads images with any header and tables. The input is a header, three L1 entries, and
// the L2 entries of the cluster after it.
func FuzzRead(f *testing.F) {
	const tables, end = 104, 6 * cluster
	valid := layer(3*span, map[int64][]byte{0: filled(1), 1: nil, 2: filled(2)})
	seed := func(entries ...uint64) {
		b := valid.header()
		for _, e := range entries {
			b = binary.BigEndian.AppendUint64(b, e)
		}
		f.Add(b)
	}
	seed()
	seed(2*cluster|copied, 0, 0, 3*cluster|copied, zeroFlag, 4*cluster|copied)
	seed(2*cluster, 2*cluster, 1*cluster, 2*cluster, 3*cluster|zeroFlag)
	seed(1<<56-cluster, end, 0, 1<<62)
	seed(2*cluster, 0, 0, 1<<62, 1<<56-cluster)
	f.Fuzz(func(t *testing.T, in []byte) {
		file, to := newFile(t), newFile(t)
		header, entries := in[:min(tables, len(in))], in[min(tables, len(in)):]
		l1, l2 := entries[:min(24, len(entries))], entries[min(24, len(entries)):]
		for at, b := range map[int64][]byte{0: header, cluster: l1, 2 * cluster: l2[:min(cluster, len(l2))], 3*cluster + 5: {1}} {
			if _, err := file.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Truncate(end); err != nil {
			t.Fatal(err)
		}
		var err error
		used := allocated(func() { err = qcow2.Flatten(t.Context(), []*os.File{file, file}, to) })
		if used > 2*memory { // the fuzzer allocates too
			t.Errorf("Flatten allocated %d bytes, want at most %d", used, int64(2*memory))
		}
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("Flatten = %v, want invalid", err)
			}
			return
		}
		want, err := qcow2.Size(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := contents(t, to); got != want {
			t.Errorf("size of the merged image = %d, want %d", got, want)
		}
	})
}
