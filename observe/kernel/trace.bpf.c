//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * Records every system call, file operation and process of the watched jails.
 *
 * Each call is one record, written when the call returns. Each jail has a ring for
 * each CPU, so that no lock is needed and no jail uses the space of another. The
 * daemon maps the rings and reads them when they have data. It replaces rings that fill
 * by larger ones. Programs wait for the daemon only if a ring is nearly full.
 *
 * While a program writes, preemption is disabled, so that no other program writes to
 * the rings and the scratch memory of its CPU. Until Linux 6.19 the kernel calls
 * programs on tracepoints with preemption disabled. Since 7.0 a program must disable
 * it itself.
 */
#include "types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

#define SLOTS 1024
#define CALLS 512
#define PATHS 65536
#define SHORT 256   /* of a string kept from entry to return */
#define LONG 4096   /* of a string in a record */
#define HEADER 256  /* of a ring */
#define FIXED 128   /* of a record */
#define SLACK (FIXED + 2 * LONG + 64)
#define CHUNK 4096  /* of the arguments of a program */
#define CHUNKS 2048
#define CACHED 4    /* descriptors a task remembers */
#define STALE 2000000000ULL /* ns without a heartbeat after which the daemon counts as dead */

/* Set before loading. */
const volatile u32 ring_size = 65536; /* of a chunk of a ring; a power of two */
const volatile u32 ring_shift = 16; /* its logarithm, because a division takes longer than a shift */
const volatile bool preemptible = false; /* the kernel may interrupt a program for another */

enum { SYSCALL, FILES, PROC, SOURCES };

/*
 * The header of a ring. A jail's map begins with an element for each CPU, which contains the
 * header and the first chunk of the ring. The other chunks follow, those of the first CPU first.
 */
struct ring {
	u64 head;	    /* bytes ever written */
	u64 lost[SOURCES];  /* records that did not fit */
	u64 waits;	    /* times a call waited because the ring was nearly full */
	u64 writing;	    /* odd from before the timestamp of a record is read until the record is complete */
	u32 chunks;	    /* a power of two; written by the daemon before the ring is used */
	u32 next;	    /* element of the second chunk */
	u8 pad1[128 - 8 * (4 + SOURCES)];
	u64 tail;	    /* bytes ever read; written by the daemon */
	u8 pad2[128 - 8];
};

enum kind { CALL = 1, PATH, ARGS, FORK, EXEC, EXIT };

/* The low bits are those of event.Flags. */
enum {
	DENIED = 1 << 0,
	UNFINISHED = 1 << 1,
	PARTIAL = 1 << 2,
	CHILD = 1 << 3,
	CUT = 1 << 4,
	RACED = 1 << 5,
	INJECTED = 1 << 6,
	THREAD = 1 << 9,
	/* Only in records. */
	NO_CALL = 1 << 11,	/* record only the operation on a file, not the call */
	COMPAT = 1 << 12,
	CREATED = 1 << 13,
	OUTSIDE = 1 << 14,	/* in PATH: the path is outside the root of the jail */
	WITH_FILE = 1 << 15,	/* the call is an operation on a file that is recorded */
};

struct record {
	u16 size;	/* with payload, a multiple of 8 */
	u16 flags;
	u16 len;	/* of the first string that follows; the second ends with a zero */
	u16 kind;
	u64 ns;
	u32 pid, tid;	/* inside the jail */
	u32 host_pid;	/* of the process */
	s32 nr;		/* of PROC: the parent, inside the jail */
	char comm[16];
	s64 ret;
	u64 dur;
	u64 args[6];
	u32 file, file2; /* numbers of the paths of descriptors */
	u32 base, base2; /* numbers of the base directories of relative paths */
};

_Static_assert(sizeof(struct ring) == HEADER, "ring header");
_Static_assert(sizeof(struct record) == FIXED, "record");

struct call {
	u8 path, dir, to, to_dir; /* arguments, from 1 */
	u8 fd, fd2, addr, len;
	u32 flags;
	u32 pad;
};

enum { /* of struct call */
	F_FILE = 1 << 0,	/* an operation on a file */
	F_RETURNS = 1 << 1,	/* the descriptor of a file */
	F_CLOSES = 1 << 2,
	F_EXECS = 1 << 3,
	F_MOVES = 1 << 4,	/* may change the path of other files */
	F_ADDR_OUT = 1 << 5,
	F_MESSAGE = 1 << 6,
	F_ROOT = 1 << 7,	/* changes the root directory */
	F_FORKS = 1 << 8,
};

enum { /* of mmap(2), the only call on a file whose descriptor is its fifth argument */
	MMAP_FD = 5,
	PROT_WRITE = 2,
	MAP_SHARED = 1,
};

enum { /* of struct slot */
	S_FILES = 1 << 0,
	S_THROTTLE = 1 << 1,
	S_MUTE = 1 << 2,
};

struct slot {
	u64 cgroup;	/* 0 if the slot is unused */
	char jail[16];
	u32 level;	/* of its init's pid namespace */
	u32 flags;
	u64 epoch;	/* different for each jail that used the slot */
	u64 moves;	/* number of changes that can affect any path */
	u64 removals;	/* number of changes that can remove a name */
	u64 root;	/* its root directory */
	u64 without_ring;	/* records on a CPU that has no ring */
	u64 retired[SOURCES];	/* losses of rings that were replaced; written by the daemon */
	u64 reported[SOURCES + 1]; /* losses that the log contains, by source, and without_ring; written by the daemon */
	u64 reported_at;	/* time of the last gap in reported; written by the daemon */
	u32 paths;	/* number of the newest path */
	u32 sample;
	u32 second;	/* 1 if the rings in use are the second of the slot's two elements of rings */
	u32 pad;
	u64 want[CALLS / 64];
};

struct ctl {
	u64 heartbeat;	/* last time at which the daemon read, CLOCK_MONOTONIC */
	u64 asleep;	/* the daemon waits for an entry in bell */
	u32 level;	/* level of the jails' cgroups in the hierarchy */
	u32 jails;
	u32 pad;
	u8 dirty[SLOTS]; /* a ring of the slot has data */
};

struct cached {
	u64 file, dentry, removals;
	u64 id;
};

struct task {
	u64 epoch;
	u32 slot;
	u32 rings;	/* index in rings, for the current program */
	u32 pid, tid;
	s32 nr;		/* number of the current call, or -1 */
	u32 wanted;	/* flags for the record */
	u32 samples;
	u64 begin;
	u64 args[6];
	u32 file;	/* path of the file that is being closed */
	u32 base;
	u16 len[2];
	u32 faults;	/* strings that must be read again after the call, which loads their pages */
	u32 ended;	/* of a main thread: the exit of its process is recorded */
	struct cached cache[CACHED];
	char text[2][SHORT];
};

struct walk {
	u64 dentry, mnt, root;
	u32 pos, outside;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct ctl);
} ctls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__type(key, u64);
	__type(value, u32);
} jails SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * CALLS);
	__type(key, u32);
	__type(value, struct call);
} calls SEC(".maps");

struct element {
	u8 bytes[HEADER + 65536 + SLACK];
};

struct ring_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP); /* the numbers of elements differ */
	__type(key, u32);
	__type(value, struct element);
} ring_of_jail SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2 * SLOTS); /* the first of each slot, then the second of each slot */
	__type(key, u32);
	__array(values, struct ring_map);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

struct path_key {
	u64 dentry, mnt;
	u64 slot;
};

struct path_entry {
	u64 parent, hash, inode, moves, epoch;
	u64 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PATHS);
	__type(key, struct path_key);
	__type(value, struct path_entry);
} paths SEC(".maps");

/* bpf2go generates Go types for the types of global variables. */
const struct record *unused_record __attribute__((unused));
const struct ring *unused_ring __attribute__((unused));

/*
 * Data that is too large for the stack: all functions of a call chain have 512 bytes
 * together.
 */
struct scratch {
	char name[LONG + 256];
	struct record copy; /* used by leave only */
	struct path_key key;   /* this and the following are used by intern only */
	struct path_entry fresh;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} bell SEC(".maps");

static __always_inline struct scratch *scratch(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

static __always_inline struct ctl *control(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&ctls, &zero);
}

/* --- preemption --- */

extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

static __always_inline void disable_preemption(void)
{
	if (preemptible)
		bpf_preempt_disable();
}

static __always_inline void enable_preemption(void)
{
	if (preemptible)
		bpf_preempt_enable();
}

/* --- the task and its jail --- */

static __always_inline u32 pid_at_level(struct pid *pid, u32 level)
{
	u32 nr = 0;
	void *at;

	if (!pid)
		return 0;
	if (BPF_CORE_READ(pid, level) < level)
		return 0; /* outside */
	at = (void *)pid + bpf_core_field_offset(struct pid, numbers) +
	     (level & 31) * bpf_core_type_size(struct upid) +
	     bpf_core_field_offset(struct upid, nr);
	bpf_probe_read_kernel(&nr, sizeof(nr), at);
	return nr;
}

static __always_inline u32 process_pid(struct task_struct *t, u32 level)
{
	return pid_at_level(BPF_CORE_READ(t, group_leader, thread_pid), level);
}

static __always_inline void identify(struct task *st, struct task_struct *t, u32 level)
{
	st->tid = pid_at_level(BPF_CORE_READ(t, thread_pid), level);
	st->pid = process_pid(t, level);
}

/* task_in_jail returns the state of the current task if it is in a watched jail, otherwise NULL. */
static __always_inline struct task *task_in_jail(struct task_struct *t, struct slot **slot, bool *fresh)
{
	struct task *st;
	struct slot *s;
	struct ctl *c;
	struct pid *pid = t->thread_pid;
	u32 *index;
	u64 cgroup;

	*fresh = false;
	if (pid && pid->level == 0)
		return NULL; /* each jail has a pid namespace of its own */
	st = bpf_task_storage_get(&tasks, t, 0, 0);
	if (st) {
		s = bpf_map_lookup_elem(&slots, &st->slot);
		if (s && s->epoch == st->epoch) {
			*slot = s;
			return st->tid ? st : NULL;
		}
	}
	c = control();
	if (!c || !c->jails)
		return NULL;
	cgroup = bpf_get_current_ancestor_cgroup_id(c->level);
	index = bpf_map_lookup_elem(&jails, &cgroup);
	if (!index)
		return NULL;
	s = bpf_map_lookup_elem(&slots, index);
	if (!s || s->cgroup != cgroup)
		return NULL;
	if (!st)
		st = bpf_task_storage_get(&tasks, t, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st)
		return NULL;
	st->epoch = s->epoch;
	st->slot = *index;
	st->nr = -1;
	for (int i = 0; i < CACHED; i++)
		st->cache[i].file = 0;
	identify(st, t, s->level);
	if (!st->tid)
		return NULL; /* a helper of the OCI runtime: in the cgroup, but not in the pid namespace of the jail */
	*fresh = true;
	*slot = s;
	return st;
}

/* --- rings --- */

struct spin { /* small, because the programs have little stack left */
	struct ring *ring;
	u32 tail;  /* its low bits */
	u32 until; /* low bits of a time in units of 1024 ns */
};

static __always_inline u32 coarse_time(void)
{
	return bpf_ktime_get_ns() >> 10;
}

/* wait_ended reports whether the daemon has read from the ring or the time is over. */
static long wait_ended(u32 i, struct spin *s)
{
	if ((u32)*(volatile u64 *)&s->ring->tail != s->tail)
		return 1;
	return i % 32 == 31 && (s32)(coarse_time() - s->until) >= 0; /* the clock is slower than the ring */
}

static __always_inline bool daemon_alive(u64 now)
{
	struct ctl *c = control();

	return c && (s64)(now - c->heartbeat) < (s64)STALE;
}

static __always_inline struct ring *ring_of_cpu(struct slot *slot, u32 index)
{
	u32 cpu = bpf_get_smp_processor_id();
	void *map = bpf_map_lookup_elem(&rings, &index);
	struct ring *ring;

	if (!map)
		return NULL;
	ring = bpf_map_lookup_elem(map, &cpu);
	if (!ring)
		__sync_fetch_and_add(&slot->without_ring, 1);
	return ring;
}

/*
 * choose_rings selects the rings in use for the current program. Preemption is disabled: the daemon
 * frees replaced rings when no CPU runs a program that has chosen them.
 */
static __always_inline void choose_rings(struct slot *slot, struct task *st)
{
	st->rings = (st->slot & (SLOTS - 1)) + (*(volatile u32 *)&slot->second ? SLOTS : 0);
}

/*
 * begin_write returns the ring of this CPU and marks it as being written to: records that
 * are not complete yet have a timestamp of now or later. end_write removes the mark. An
 * interrupt or the hypervisor can delay the CPU in between, but no other program runs
 * on it.
 */
static __always_inline struct ring *begin_write(struct slot *slot, struct task *st)
{
	struct ring *ring;

	disable_preemption();
	choose_rings(slot, st);
	ring = ring_of_cpu(slot, st->rings);
	if (!ring) {
		enable_preemption();
		return NULL;
	}
#if defined(__TARGET_ARCH_x86)
	*(volatile u64 *)&ring->writing += 1;
	asm volatile("" ::: "memory"); /* x86 does not reorder stores; keep the compiler from it */
#else
	__sync_lock_test_and_set(&ring->writing, ring->writing + 1);
#endif
	return ring;
}

static __always_inline void end_write(struct ring *ring)
{
#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory");
	*(volatile u64 *)&ring->writing += 1;
#else
	__sync_lock_test_and_set(&ring->writing, ring->writing + 1);
#endif
	enable_preemption();
}

static __always_inline u32 size_of(struct ring *ring)
{
	return ring->chunks << ring_shift;
}

static __always_inline bool has_room(struct ring *ring, u32 need)
{
	return ring->head - *(volatile u64 *)&ring->tail + need <= size_of(ring);
}

/*
 * wait_for_room spins until the daemon has read from the ring, for 0.1 to 4 milliseconds,
 * longer if less of the ring is free. The limit is necessary because nothing else runs
 * on this CPU meanwhile, and the daemon may need it. It is a time, not a number of
 * iterations, so that a fast CPU does not lose records sooner. A daemon that cannot keep
 * up freezes the jail.
 *
 * The verifier checks a function that is not static once, not once per caller.
 */
__noinline int wait_for_room(u32 index, u32 need)
{
	u32 of = index & (SLOTS - 1);
	struct slot *slot = bpf_map_lookup_elem(&slots, &of);
	struct spin s = {};
	u32 free, size, limit = 100; /* in units of 1024 ns */

	if (!slot)
		return 0;
	s.ring = ring_of_cpu(slot, index);
	if (!s.ring)
		return 0;
	if (!(slot->flags & S_THROTTLE) || !daemon_alive(bpf_ktime_get_ns()))
		return has_room(s.ring, need);
	s.tail = s.ring->tail;
	size = size_of(s.ring);
	free = size - ((u32)s.ring->head - s.tail);
	if (free < need + size / 16) /* in a ring of any size the longest wait precedes a loss */
		limit = 4000;
	else if (free < need + size / 8)
		limit = 1000;
	s.until = coarse_time() + limit;
	s.ring->waits++;
	bpf_loop(1 << 23, wait_ended, &s, 0); /* the most that the kernel accepts */
	return has_room(s.ring, need);
}

/*
 * reserve returns where a record of at most SLACK bytes can be written, or NULL if there is no
 * room. It waits if the ring is nearly full.
 */
static __always_inline struct record *reserve(struct ring *ring, u32 index)
{
	u64 head = ring->head;
	void *at = ring;
	u32 n;

	if (head - *(volatile u64 *)&ring->tail > size_of(ring) - size_of(ring) / 4 && !wait_for_room(index, SLACK))
		return NULL;
	n = (head >> ring_shift) & (ring->chunks - 1);
	if (n) {
		void *map = bpf_map_lookup_elem(&rings, &index);

		n += ring->next - 1;
		at = map ? bpf_map_lookup_elem(map, &n) : NULL;
		if (!at)
			return NULL;
	}
	return at + HEADER + (head & (ring_size - 1));
}

static __always_inline void commit(struct ring *ring, u32 index, u32 size)
{
	struct ctl *c = control();

#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory"); /* x86 does not reorder stores; keep the compiler from it */
	*(volatile u64 *)&ring->head += size;
#else
	__sync_fetch_and_add(&ring->head, size);
#endif
	if (!c)
		return;
	if (!*(volatile u8 *)&c->dirty[index & (SLOTS - 1)])
		c->dirty[index & (SLOTS - 1)] = 1;
	if (*(volatile u64 *)&c->asleep && __sync_lock_test_and_set(&c->asleep, 0)) {
		u64 one = 1;

		bpf_ringbuf_output(&bell, &one, sizeof(one), BPF_RB_FORCE_WAKEUP);
	}
}

static __always_inline void set_comm(struct record *r, struct task_struct *t)
{
	/* A direct read is cheaper than bpf_get_current_comm. */
	*(u64 *)&r->comm[0] = *(u64 *)&t->comm[0];
	*(u64 *)&r->comm[8] = *(u64 *)&t->comm[8];
}

/* --- paths --- */

static long walk_step(u32 i, struct walk *w)
{
	struct dentry *dentry = (void *)w->dentry;
	struct vfsmount *mnt = (void *)w->mnt;
	struct dentry *parent;
	struct scratch *s;
	u32 pos = w->pos;
	long n;

	if (w->dentry == w->root)
		return 1;
	parent = BPF_CORE_READ(dentry, d_parent);
	if (dentry == BPF_CORE_READ(mnt, mnt_root) || dentry == parent) {
		struct mount *m = (void *)mnt - bpf_core_field_offset(struct mount, mnt);
		struct mount *up = BPF_CORE_READ(m, mnt_parent);

		if (up != m && up) {
			w->dentry = (u64)BPF_CORE_READ(m, mnt_mountpoint);
			w->mnt = (u64)up + bpf_core_field_offset(struct mount, mnt);
			return 0;
		}
		w->outside = 1;
		if (i != 0) /* the root of a mount has no name */
			return 1;
	}
	s = scratch();
	if (!s || pos >= LONG) {
		w->outside = 2;
		return 1;
	}
	n = bpf_probe_read_kernel_str(&s->name[pos & (LONG - 1)], 256, BPF_CORE_READ(dentry, d_name.name));
	if (n > 0)
		w->pos = pos + n;
	if (w->outside)
		return 1;
	w->dentry = (u64)parent;
	return 0;
}

/* root_of returns the root directory of the jail, which is that of its init. */
static __always_inline u64 root_of(struct task_struct *t, struct slot *slot)
{
	struct pid_namespace *ns;
	u64 root = slot->root;

	if (root)
		return root;
	ns = BPF_CORE_READ(t, nsproxy, pid_ns_for_children);
	for (int i = 0; i < 8 && ns; i++) {
		if (BPF_CORE_READ(ns, level) <= slot->level)
			break;
		ns = BPF_CORE_READ(ns, parent);
	}
	if (!ns)
		return 0;
	root = (u64)BPF_CORE_READ(ns, child_reaper, fs, root.dentry);
	slot->root = root;
	return root;
}

/*
 * UNNUMBERED is returned for a path whose PATH record did not fit into the ring. Operations on
 * it are recorded without a path or counted as lost.
 */
#define UNNUMBERED -1

/*
 * intern returns the number of a path, and writes a PATH record for a new number. 0 means
 * no path.
 */
__noinline int intern(u64 dentry_at, u64 mnt_at)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct path_entry *old, *fresh;
	struct path_key *key;
	struct walk w = {};
	struct dentry *dentry = (void *)dentry_at;
	struct scratch *s;
	struct record *r;
	struct ring *ring;
	struct slot *slot;
	struct task *st;
	u32 size;

	st = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!st)
		return 0;
	slot = bpf_map_lookup_elem(&slots, &st->slot);
	if (!slot)
		return 0;
	s = scratch();
	if (!s)
		return 0;
	key = &s->key;
	fresh = &s->fresh;
	__builtin_memset(key, 0, sizeof(*key));
	key->dentry = dentry_at;
	key->mnt = mnt_at;
	key->slot = st->slot;
	if (!key->dentry)
		return 0;
	fresh->parent = (u64)BPF_CORE_READ(dentry, d_parent);
	fresh->hash = BPF_CORE_READ(dentry, d_name.hash_len);
	fresh->inode = (u64)BPF_CORE_READ(dentry, d_inode);
	fresh->moves = slot->moves;
	fresh->epoch = slot->epoch;
	old = bpf_map_lookup_elem(&paths, key);
	if (old && old->parent == fresh->parent && old->hash == fresh->hash && old->inode == fresh->inode &&
	    old->moves == fresh->moves && old->epoch == fresh->epoch)
		return old->id;

	w.dentry = key->dentry;
	w.mnt = key->mnt;
	w.root = root_of(t, slot);
	bpf_loop(512, walk_step, &w, 0);
	if (w.dentry != w.root && !w.outside)
		w.outside = 2;

	ring = ring_of_cpu(slot, st->rings);
	if (!ring)
		return 0;
	r = reserve(ring, st->rings);
	if (!r)
		return UNNUMBERED;
	fresh->id = __sync_fetch_and_add(&slot->paths, 1) + 1;
	r->kind = PATH;
	r->flags = (w.outside == 1 ? OUTSIDE : 0) | (w.outside == 2 ? CUT : 0);
	r->ns = bpf_ktime_get_ns();
	r->file = fresh->id;
	size = w.pos;
	if (size > LONG)
		size = LONG;
	r->len = size;
	if (size)
		bpf_probe_read_kernel((void *)r + FIXED, size, s->name);
	size = FIXED + ((size + 7) & ~7U);
	r->size = size;
	commit(ring, st->rings, size);
	bpf_map_update_elem(&paths, key, fresh, BPF_ANY);
	return fresh->id;
}

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFIFO 0010000
#define PIPEFS 0x50495045

/* open_file returns the file of a descriptor. */
static __always_inline struct file *open_file(struct task_struct *t, u32 fd)
{
	struct files_struct *files = t->files;
	struct file *f = NULL;
	struct fdtable *fdt;

	/* The verifier knows the types, so these reads need no helper. */
	if (!files)
		return NULL;
	fdt = files->fdt;
	if (!fdt || fd >= fdt->max_fds)
		return NULL;
	bpf_probe_read_kernel(&f, sizeof(f), &fdt->fd[fd]);
	return f;
}

/* find_file is file_of for files that are not in the cache of the task. */
__noinline int find_file(u32 fd)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct cached *c;
	struct inode *inode;
	struct slot *slot;
	struct task *st;
	struct file *f;
	u64 dentry;
	u32 mode, id;

	st = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!st)
		return 0;
	slot = bpf_map_lookup_elem(&slots, &st->slot);
	f = open_file(t, fd);
	if (!slot || !f)
		return 0;
	dentry = (u64)BPF_CORE_READ(f, f_path.dentry);
	inode = BPF_CORE_READ(f, f_inode);
	mode = BPF_CORE_READ(inode, i_mode) & S_IFMT;
	id = 0;
	if (mode != 0 && mode != S_IFSOCK && !(mode == S_IFIFO && BPF_CORE_READ(inode, i_sb, s_magic) == PIPEFS)) {
		id = intern(dentry, (u64)BPF_CORE_READ(f, f_path.mnt));
		if (!id || id == UNNUMBERED)
			return id;
	}
	c = &st->cache[fd & (CACHED - 1)];
	c->file = (u64)f;
	c->dentry = dentry;
	c->removals = slot->removals + slot->moves;
	c->id = id;
	return id;
}

/* file_of returns the number of the path of an open file, or 0 if it has none. */
static __always_inline u32 file_of(struct task_struct *t, struct slot *slot, struct task *st, u32 fd)
{
	struct cached *c = &st->cache[fd & (CACHED - 1)];
	struct file *f = open_file(t, fd);

	if (!f)
		return 0;
	if (c->file == (u64)f && c->dentry == (u64)BPF_CORE_READ(f, f_path.dentry) && c->removals == slot->removals + slot->moves)
		return c->id;
	return find_file(fd);
}

#define AT_FDCWD -100

/* base_of returns the base of a path: a directory, or the root of the task. */
__noinline int base_of(u32 absolute, s32 dir)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct slot *slot;
	struct task *st;
	u64 root;

	if (!absolute && dir != AT_FDCWD)
		return find_file(dir);
	if (!absolute)
		return intern((u64)BPF_CORE_READ(t, fs, pwd.dentry), (u64)BPF_CORE_READ(t, fs, pwd.mnt));
	st = bpf_task_storage_get(&tasks, t, 0, 0);
	if (!st)
		return 0;
	slot = bpf_map_lookup_elem(&slots, &st->slot);
	if (!slot)
		return 0;
	root = (u64)BPF_CORE_READ(t, fs, root.dentry);
	if (root == root_of(t, slot))
		return 0; /* the usual case: the root of the jail */
	return intern(root, (u64)BPF_CORE_READ(t, fs, root.mnt));
}

/* --- system calls --- */

static __always_inline bool compat(struct task_struct *t)
{
#if defined(__TARGET_ARCH_x86)
	return t->thread_info.status & 2; /* TS_COMPAT */
#else
	return t->thread_info.flags & (1 << 22); /* TIF_32BIT */
#endif
}

static __always_inline void arguments(u64 *args, struct pt_regs *regs, bool is32)
{
#if defined(__TARGET_ARCH_x86)
	if (is32) {
		args[0] = (u32)regs->bx;
		args[1] = (u32)regs->cx;
		args[2] = (u32)regs->dx;
		args[3] = (u32)regs->si;
		args[4] = (u32)regs->di;
		args[5] = (u32)regs->bp;
		return;
	}
	args[0] = regs->di;
	args[1] = regs->si;
	args[2] = regs->dx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
#else
	args[0] = regs->orig_x0;
	args[1] = regs->regs[1];
	args[2] = regs->regs[2];
	args[3] = regs->regs[3];
	args[4] = regs->regs[4];
	args[5] = regs->regs[5];
#endif
}

static __always_inline s32 call_number(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

static __always_inline struct call *call_of(s32 nr, bool is32)
{
	u32 index = nr & ~0x40000000; /* without __X32_SYSCALL_BIT */

	if (index >= CALLS)
		return NULL;
	if (is32)
		index += CALLS;
	return bpf_map_lookup_elem(&calls, &index);
}

/* wanted returns the flags of the record of a call, or 0 if the call is not recorded. */
#define WANTED (1 << 16)
static __always_inline u32 wanted(struct slot *slot, struct task *st, s32 nr, bool is32, struct call *c)
{
	u32 flags = 0, index = nr & ~0x40000000;
	bool call = true;

	if (c && (c->flags & F_FILE) && (slot->flags & S_FILES))
		flags |= WITH_FILE | WANTED;
	if (!is32 && index < CALLS)
		call = slot->want[(index >> 6) & (CALLS / 64 - 1)] >> (index & 63) & 1;
	else
		call = slot->want[0] | slot->want[1]; /* rare: record them if any call is recorded */
	if (call && slot->sample > 1 && ++st->samples % slot->sample)
		call = false;
	if (call)
		flags |= WANTED;
	else if (flags)
		flags |= NO_CALL;
	return flags;
}

/* pick returns an argument, counted from 1. */
static __always_inline u64 pick(const u64 *args, u32 n)
{
	n--;
	return n < 6 ? args[n] : 0;
}

/*
 * pick_now is pick for the current call. An array of the arguments would not fit on the
 * stack of this call chain.
 */
static __always_inline u64 pick_now(struct pt_regs *regs, u32 n, bool is32)
{
#if defined(__TARGET_ARCH_x86)
	if (is32) {
		switch (n) {
		case 1: return (u32)regs->bx;
		case 2: return (u32)regs->cx;
		case 3: return (u32)regs->dx;
		case 4: return (u32)regs->si;
		case 5: return (u32)regs->di;
		case 6: return (u32)regs->bp;
		}
		return 0;
	}
	switch (n) {
	case 1: return regs->di;
	case 2: return regs->si;
	case 3: return regs->dx;
	case 4: return regs->r10;
	case 5: return regs->r8;
	case 6: return regs->r9;
	}
#else
	switch (n) {
	case 1: return regs->orig_x0;
	case 2: return regs->regs[1];
	case 3: return regs->regs[2];
	case 4: return regs->regs[3];
	case 5: return regs->regs[4];
	case 6: return regs->regs[5];
	}
#endif
	return 0;
}

struct header32 { u32 name, len; };
struct header64 { u64 name; u32 len; };

/* address reads the socket address that a call takes or returns. */
static __always_inline u32 address(char *to, const u64 *args, struct call *c, bool is32)
{
	u64 from = pick(args, c->addr);
	u32 len = 0;

	if (!from)
		return 0;
	if (c->flags & F_MESSAGE) {
		if (is32) {
			struct header32 h = {};

			if (bpf_probe_read_user(&h, sizeof(h), (void *)from))
				return 0;
			from = h.name;
			len = h.len;
		} else {
			struct header64 h = {};

			if (bpf_probe_read_user(&h, 12, (void *)from))
				return 0;
			from = h.name;
			len = h.len;
		}
	} else if (c->flags & F_ADDR_OUT) {
		u64 at = pick(args, c->len);

		if (!at || bpf_probe_read_user(&len, sizeof(len), (void *)at))
			return 0;
	} else {
		len = pick(args, c->len);
	}
	if (!from || !len)
		return 0;
	if (len > 128)
		len = 128;
	if (bpf_probe_read_user(to, len, (void *)from))
		return 0;
	return len;
}

/* entering reads what must be read before a call, such as its strings. */
static __noinline void entering(struct task_struct *t, struct slot *slot, struct task *st, struct pt_regs *regs, u32 is32)
{
	struct call *c = call_of(st->nr, is32);
	u64 args[6];
	long n;

	if (!c)
		return;
	arguments(args, regs, is32);
	if (c->flags & F_EXECS) {
#pragma unroll
		for (int i = 0; i < 6; i++)
			st->args[i] = args[i];
	}
	if (c->path) {
		n = bpf_probe_read_user_str(st->text[0], SHORT, (void *)pick(args, c->path));
		if (n <= 0 || n == SHORT)
			st->faults |= 1;
		st->len[0] = n > 0 ? n : 0;
	}
	if (c->to) {
		n = bpf_probe_read_user_str(st->text[1], SHORT, (void *)pick(args, c->to));
		if (n <= 0 || n == SHORT)
			st->faults |= 2;
		st->len[1] = n > 0 ? n : 0;
	}
	if (c->addr && !(c->flags & F_ADDR_OUT))
		st->len[0] = address(st->text[0], args, c, is32);
	if ((c->flags & F_CLOSES) && (st->wanted & WITH_FILE))
		st->file = file_of(t, slot, st, pick(args, c->fd));
	if ((c->flags & F_ROOT) && (st->wanted & WITH_FILE))
		st->base = base_of(st->text[0][0] == '/', AT_FDCWD);
}

SEC("tp_btf/sys_enter")
int BPF_PROG(enter, struct pt_regs *regs, long id)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct slot *slot;
	struct task *st;
	struct call *c;
	bool fresh, is32;

	st = task_in_jail(t, &slot, &fresh);
	if (!st)
		return 0;
	is32 = compat(t);
	c = call_of(id, is32);
	st->nr = id;
	st->wanted = wanted(slot, st, id, is32, c);
	if (!st->wanted)
		return 0;
	if (c && (c->flags & ~(F_FILE | F_MOVES | F_RETURNS | F_ADDR_OUT) || c->path || (c->addr && !(c->flags & F_ADDR_OUT)))) {
		st->len[0] = st->len[1] = 0;
		st->faults = 0;
		st->file = st->base = 0;
		disable_preemption();
		choose_rings(slot, st);
		entering(t, slot, st, regs, is32);
		enable_preemption();
	}
	st->begin = bpf_ktime_get_ns();
	return 0;
}

/* The numbers of the paths of the files and directories of a call. */
struct ids {
	u32 file, file2, base, base2, flags;
};

#define FMODE_CREATED 0x100000

static __always_inline void resolve(struct task_struct *t, struct slot *slot, struct task *st, struct record *r, struct ids *ids)
{
	struct call *c = call_of(r->nr, r->flags & COMPAT);

	if (!c)
		return;
	if (c->flags & F_CLOSES) {
		ids->file = st->file;
		return;
	}
	if (c->fd)
		ids->file = file_of(t, slot, st, pick(r->args, c->fd));
	if (c->fd2)
		ids->file2 = file_of(t, slot, st, pick(r->args, c->fd2));
	if ((c->flags & F_RETURNS) && r->ret >= 0) {
		struct file *f = open_file(t, r->ret);

		ids->file = file_of(t, slot, st, r->ret);
		if (f && (BPF_CORE_READ(f, f_mode) & FMODE_CREATED))
			ids->flags |= CREATED;
		return;
	}
	if (c->flags & F_ROOT) {
		ids->base = st->base;
		return;
	}
	if (c->path)
		ids->base = base_of(st->text[0][0] == '/', c->dir ? (s32)pick(r->args, c->dir) : AT_FDCWD);
	if (c->to && c->to_dir)
		ids->base2 = base_of(st->text[1][0] == '/', (s32)pick(r->args, c->to_dir));
	else if (c->to)
		ids->base2 = base_of(st->text[1][0] == '/', AT_FDCWD);
}

/* text copies a string argument of a call into its record and returns its length. */
static __always_inline u32 text(struct task *st, char *to, u32 which, u64 from)
{
	u32 n = st->len[which];
	long m;

	if (st->faults & (1 << which)) {
		m = bpf_probe_read_user_str(to, LONG, (void *)from);
		if (m > 0)
			return m;
	}
	if (n > SHORT)
		n = SHORT;
	if (n)
		bpf_probe_read_kernel(to, n, st->text[which]);
	return n;
}

/*
 * raced reports whether the memory of a call's first string has changed since it
 * was read. Then the kernel may have used another string. kept is the copy in the
 * record; the copy in st is overwritten.
 */
static __always_inline bool raced(struct task *st, const char *kept, u64 from)
{
	u32 n = st->len[0];

	if ((st->faults & 1) || !n || n > SHORT)
		return false;
	if (bpf_probe_read_user_str(st->text[0], SHORT, (void *)from) != n)
		return true;
	for (u32 i = 0; i < SHORT / 8; i++) {
		u64 was, is;

		if (i * 8 >= n)
			break;
		was = *(u64 *)&kept[i * 8];
		is = *(u64 *)&st->text[0][i * 8];
		if (n - i * 8 < 8) { /* bytes after the end are undefined */
			u64 mask = (1ULL << ((n - i * 8) * 8)) - 1;

			was &= mask;
			is &= mask;
		}
		if (was != is)
			return true;
	}
	return false;
}

/*
 * file_records returns the number of file events that the daemon derives from the record of
 * a call with WITH_FILE (decoding.file), which are lost with the record.
 */
static __always_inline u32 file_records(struct call *c, long ret, u32 file, u32 file2)
{
	if ((c->flags & F_RETURNS) && ret >= 0)
		return file != 0; /* not for a pipe or a socket */
	if (c->path)
		return 1;
	return (file != 0) + (file2 != 0);
}

/*
 * returning writes the record of a call with strings or files. from is a record without
 * comm.
 */
static __noinline void returning(struct task_struct *t, struct slot *slot, struct task *st, struct record *from, u32 is32)
{
	struct call *c;
	struct ids ids = {};
	struct ring *ring;
	struct record *r;
	u32 size, n;

	c = call_of(from->nr, is32);
	if (!c)
		return;
	if (from->flags & WITH_FILE) {
		resolve(t, slot, st, from, &ids);
		from->flags |= ids.flags;
	}
	if ((c->flags & F_MOVES) && from->ret >= 0) {
		if (c->to || (c->flags & F_ROOT))
			__sync_fetch_and_add(&slot->moves, 1);
		else
			__sync_fetch_and_add(&slot->removals, 1);
	}
	if ((c->flags & F_ADDR_OUT) && from->ret >= 0)
		st->len[0] = address(st->text[0], from->args, c, is32);

	ring = ring_of_cpu(slot, st->rings);
	if (!ring)
		return;
	r = reserve(ring, st->rings);
	if (!r) {
		if (!(from->flags & NO_CALL))
			ring->lost[SYSCALL]++;
		if (from->flags & WITH_FILE)
			ring->lost[FILES] += file_records(c, from->ret, ids.file, ids.file2);
		return;
	}
	__builtin_memcpy(r, from, sizeof(*r));
	set_comm(r, t);
	r->file = ids.file;
	r->file2 = ids.file2;
	r->base = ids.base;
	r->base2 = ids.base2;
	size = FIXED;
	r->len = 0;
	if (c->path || c->addr) {
		n = text(st, (void *)r + FIXED, 0, c->path ? pick(from->args, c->path) : 0);
		n &= LONG * 2 - 1;
		if (n > LONG)
			n = LONG;
		r->len = n;
		size += (n + 7) & ~7U;
		if (c->path && !(r->flags & DENIED) && !((c->flags & F_EXECS) && !r->ret) &&
		    raced(st, (void *)r + FIXED, pick(from->args, c->path)))
			r->flags |= RACED;
	}
	if (c->to && size <= FIXED + LONG) {
		n = text(st, (void *)r + size, 1, pick(from->args, c->to));
		n &= LONG * 2 - 1;
		if (n > LONG)
			n = LONG;
		size += (n + 7) & ~7U;
	}
	r->size = size;
	commit(ring, st->rings, size);
}

static __always_inline void returned(struct task_struct *t, struct slot *slot, struct task *st, struct ring *ring, bool fresh, struct pt_regs *regs, long ret)
{
	bool is32 = compat(t);
	u32 flags = 0, want;
	struct record *r;
	struct call *c;
	u64 now, begin;
	s32 nr;

	nr = st->nr;
	st->nr = -1;
	if (nr >= 0) {
		want = st->wanted;
		now = bpf_ktime_get_ns();
		begin = st->begin;
		c = call_of(nr, is32);
	} else {
		/* No entry was seen: the call was denied by seccomp, or is the first return of a child. */
		nr = call_number(regs);
		if (nr == -1)
			return; /* not a call */
		c = call_of(nr, is32);
		want = wanted(slot, st, nr, is32, c);
		if (!want)
			return;
		if (fresh && ret == 0 && c && (c->flags & F_FORKS))
			flags = CHILD;
		else if (fresh)
			flags = PARTIAL;
		else
			flags = DENIED;
		begin = now = bpf_ktime_get_ns();
		st->len[0] = st->len[1] = 0;
		st->faults = 3;
		st->file = st->base = 0;
		want &= ~WITH_FILE;
		if (want & NO_CALL)
			return;
	}
	flags |= want & (WITH_FILE | NO_CALL);
	if (is32)
		flags |= COMPAT;
	if (slot->flags & S_MUTE)
		flags |= INJECTED;

	/* The fast path: most calls have neither paths nor addresses, and most files are cached. */
	if (!c || (!(c->path | c->addr | c->fd2) && !(c->flags & ~(F_FILE | F_FORKS)))) {
		u32 file = 0;

		if (c && c->fd && (flags & WITH_FILE)) {
			file = file_of(t, slot, st, pick_now(regs, c->fd, is32));
			/* A pipe, a socket, or a mapping that cannot change the file. */
			if (!file || (c->fd == MMAP_FD && !(pick_now(regs, 3, is32) & PROT_WRITE && pick_now(regs, 4, is32) & MAP_SHARED))) {
				flags &= ~WITH_FILE;
				if (flags & NO_CALL)
					return;
			}
		}
		r = reserve(ring, st->rings);
		if (!r) {
			if (!(flags & NO_CALL))
				ring->lost[SYSCALL]++;
			if (flags & WITH_FILE)
				ring->lost[FILES]++;
			return;
		}
		r->size = FIXED;
		r->kind = CALL;
		r->flags = flags;
		r->ns = now;
		r->pid = st->pid;
		r->tid = st->tid;
		r->host_pid = t->tgid;
		r->nr = nr;
		set_comm(r, t);
		r->ret = ret;
		r->dur = now - begin;
		arguments(r->args, regs, is32);
		r->file = file;
		r->file2 = r->base = r->base2 = 0;
		r->len = 0;
		commit(ring, st->rings, FIXED);
		return;
	}

	struct scratch *s = scratch();
	struct record *copy;

	if (!s)
		return;
	copy = &s->copy;
	__builtin_memset(copy, 0, sizeof(*copy));
	if ((c->flags & F_EXECS) && !ret)
		identify(st, t, slot->level); /* exec from another thread gives it the TID of the main thread */
	copy->kind = CALL;
	copy->flags = flags;
	copy->ns = now;
	copy->pid = st->pid;
	copy->tid = st->tid;
	copy->host_pid = t->tgid;
	copy->nr = nr;
	copy->ret = ret;
	copy->dur = now - begin;
	if ((c->flags & F_EXECS) && !(flags & (DENIED | PARTIAL)))
		__builtin_memcpy(copy->args, st->args, sizeof(copy->args));
	else
		arguments(copy->args, regs, is32);
	if ((c->flags & F_EXECS) && !ret)
		st->faults = 0; /* exec has replaced the memory that they were in */
	returning(t, slot, st, copy, is32);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(leave, struct pt_regs *regs, long ret)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct slot *slot;
	struct ring *ring;
	struct task *st;
	bool fresh;

	st = task_in_jail(t, &slot, &fresh);
	if (!st)
		return 0;
	if (st->nr >= 0 && !st->wanted) {
		st->nr = -1;
		return 0;
	}
	ring = begin_write(slot, st);
	if (!ring) {
		st->nr = -1;
		return 0;
	}
	returned(t, slot, st, ring, fresh, regs, ret);
	end_write(ring);
	return 0;
}

/* --- processes --- */

static __always_inline void set_ids(struct record *r, struct task_struct *t)
{
	const struct cred *cred = BPF_CORE_READ(t, real_cred);

	r->args[0] = (u64)BPF_CORE_READ(cred, gid.val) << 32 | BPF_CORE_READ(cred, uid.val);
}

/* begin_proc begins the record of a process event, which the caller completes and commits. */
static __always_inline struct record *begin_proc(struct slot *slot, u32 index, struct ring *ring, u32 kind, u64 now)
{
	struct record *r;

	r = reserve(ring, index);
	if (!r) {
		ring->lost[PROC]++;
		return NULL;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->size = FIXED;
	r->kind = kind;
	r->ns = now;
	if (slot->flags & S_MUTE)
		r->flags = INJECTED;
	return r;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(fork, struct task_struct *parent, struct task_struct *child)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct ring *ring;
	struct record *r;
	struct slot *slot;
	struct task *st;
	bool fresh;

	st = task_in_jail(t, &slot, &fresh);
	if (!st)
		return 0;
	ring = begin_write(slot, st);
	if (!ring)
		return 0;
	r = begin_proc(slot, st->rings, ring, FORK, bpf_ktime_get_ns());
	if (!r)
		goto out;
	r->tid = pid_at_level(BPF_CORE_READ(child, thread_pid), slot->level);
	r->pid = process_pid(child, slot->level);
	r->host_pid = child->tgid;
	if (child->tgid != child->pid)
		r->flags |= THREAD;
	r->nr = process_pid(BPF_CORE_READ(child, real_parent), slot->level);
	set_comm(r, child);
	set_ids(r, child);
	r->args[2] = child->start_time;
	commit(ring, st->rings, FIXED);
out:
	end_write(ring);
	return 0;
}

struct argv {
	struct slot *slot;
	struct ring *ring;
	u64 from, end, ns;
	u32 index, host_pid, cut;
};

static long argument(u32 i, struct argv *a)
{
	struct record *r;
	u64 n = a->end - a->from;

	if (a->from >= a->end)
		return 1;
	if (n > CHUNK)
		n = CHUNK;
	r = reserve(a->ring, a->index);
	if (!r) {
		a->cut = 1;
		return 1;
	}
	r->kind = ARGS;
	r->flags = 0;
	r->ns = a->ns;
	r->host_pid = a->host_pid;
	if (bpf_probe_read_user((void *)r + FIXED, n, (void *)a->from)) {
		a->cut = 1;
		return 1;
	}
	r->len = n;
	n = FIXED + ((n + 7) & ~7ULL);
	r->size = n;
	commit(a->ring, a->index, n);
	a->from += CHUNK;
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(exec, struct task_struct *p, s32 old, struct linux_binprm *bprm)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct argv a = {};
	u32 exe_id, cwd_id;
	struct ring *ring;
	struct record *r;
	struct slot *slot;
	struct task *st;
	struct file *f;
	bool fresh;

	st = task_in_jail(t, &slot, &fresh);
	if (!st)
		return 0;
	identify(st, t, slot->level);
	ring = begin_write(slot, st);
	if (!ring)
		return 0;
	a.ns = bpf_ktime_get_ns();
	f = BPF_CORE_READ(t, mm, exe_file);
	exe_id = intern((u64)BPF_CORE_READ(f, f_path.dentry), (u64)BPF_CORE_READ(f, f_path.mnt));
	cwd_id = intern((u64)BPF_CORE_READ(t, fs, pwd.dentry), (u64)BPF_CORE_READ(t, fs, pwd.mnt));

	a.ring = ring;
	a.slot = slot;
	a.index = st->rings;
	a.host_pid = t->tgid;
	a.from = BPF_CORE_READ(t, mm, arg_start);
	a.end = BPF_CORE_READ(t, mm, arg_end);
	bpf_loop(CHUNKS, argument, &a, 0);
	if (a.from < a.end)
		a.cut = 1;

	r = begin_proc(slot, st->rings, ring, EXEC, a.ns);
	if (!r)
		goto out;
	if (a.cut)
		r->flags |= CUT;
	r->pid = st->pid;
	r->tid = st->tid;
	r->host_pid = t->tgid;
	r->nr = process_pid(BPF_CORE_READ(t, real_parent), slot->level);
	set_comm(r, t);
	set_ids(r, t);
	r->args[2] = t->start_time;
	r->file = exe_id;
	r->base = cwd_id;
	commit(ring, st->rings, FIXED);
out:
	end_write(ring);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(gone, struct task_struct *p)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct signal_struct *sig;
	struct ring *ring;
	struct record *r;
	struct slot *slot;
	struct task *st;
	bool fresh, last;
	u64 now;

	st = task_in_jail(t, &slot, &fresh);
	if (!st)
		return 0;
	ring = begin_write(slot, st);
	if (!ring)
		return 0;
	now = bpf_ktime_get_ns();
	if (st->nr >= 0) {
		/* The task ends within a call, which can be exit(2). */
		struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(t);
		bool is32 = compat(t);

		if (st->wanted && !(st->wanted & NO_CALL)) {
			struct record copy = {};

			copy.kind = CALL;
			copy.flags = UNFINISHED | (is32 ? COMPAT : 0) | (slot->flags & S_MUTE ? INJECTED : 0);
			copy.ns = now;
			copy.pid = st->pid;
			copy.tid = st->tid;
			copy.host_pid = t->tgid;
			copy.nr = st->nr;
			copy.dur = now - st->begin;
			arguments(copy.args, regs, is32);
			r = reserve(ring, st->rings);
			if (r) {
				__builtin_memcpy(r, &copy, sizeof(*r));
				set_comm(r, t);
				r->size = FIXED;
				commit(ring, st->rings, FIXED);
			} else {
				ring->lost[SYSCALL]++;
			}
		}
		st->nr = -1;
	}

	/* Two threads that end concurrently may both see that no other thread is alive. */
	sig = BPF_CORE_READ(t, signal);
	last = BPF_CORE_READ(sig, live.counter) == 0;
	if (last) {
		struct task *first = bpf_task_storage_get(&tasks, t->group_leader, 0, 0);

		if (first && __sync_lock_test_and_set(&first->ended, 1))
			last = false;
	}
	r = begin_proc(slot, st->rings, ring, EXIT, now);
	if (!r)
		goto out;
	if (!last)
		r->flags |= THREAD;
	r->pid = st->pid;
	r->tid = last ? st->pid : st->tid;
	r->host_pid = t->tgid;
	r->nr = process_pid(BPF_CORE_READ(t, real_parent), slot->level);
	set_comm(r, t);
	set_ids(r, t);
	r->ret = t->exit_code;
	r->args[2] = BPF_CORE_READ(t, group_leader, start_time);
	r->args[3] = t->utime;
	r->args[4] = t->stime;
	if (last) {
		r->args[3] += BPF_CORE_READ(sig, utime);
		r->args[4] += BPF_CORE_READ(sig, stime);
		r->args[5] = BPF_CORE_READ(sig, maxrss);
	}
	commit(ring, st->rings, FIXED);
out:
	end_write(ring);
	return 0;
}
