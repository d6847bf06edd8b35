//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * Denies what no process of a jail may do regardless of approvals: to execute a file, to open
 * it for writing or to truncate it, and to connect or send to an address. The hooks run after
 * the kernel has resolved files and addresses, so that changes of memory and names have no
 * effect.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
typedef u32 __wsum;
typedef u16 __sum16;
typedef _Bool bool;
#define true 1
#define false 0

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LPM_TRIE = 11,
};

#define BPF_F_NO_PREALLOC 1
#define EPERM 1
#define AF_INET 2
#define AF_INET6 10
#define FMODE_WRITE 2
#define DEPTH 64 /* of directories */
#define LEVELS 8 /* of cgroups, from that of a jail to those within */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct super_block {
	u32 s_dev;
};
struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};
struct dentry {
	struct dentry *d_parent;
	struct inode *d_inode;
};
struct path {
	struct dentry *dentry;
};
struct file {
	u32 f_mode;
	struct inode *f_inode;
	struct path f_path;
};
struct linux_binprm {
	struct file *file;
};
struct fdtable {
	u32 max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
struct task_struct {
	struct files_struct *files;
};
struct msghdr {
	void *msg_name;
	int msg_namelen;
};
#pragma clang attribute pop

struct socket;
struct sockaddr {
	u16 family;
	__be16 port;
	u8 rest[24];
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

enum {
	RUN = 1,   /* must not be executed */
	WRITE = 2, /* neither the file nor, of a directory, anything below it may be opened for writing */
};

struct object {
	u64 cgroup;
	u64 ino;
	u32 dev;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct object);
	__type(value, u32);
} objects SEC(".maps");

/* A prefix: its length includes the bits of the cgroup. */
struct network {
	u32 length;
	u8 cgroup[8];
	u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, u32);
} networks SEC(".maps");

/* The cgroups of jails for which anything is denied. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
} jails SEC(".maps");

struct state {
	u32 jails; /* their number, for an early exit without any */
	u32 dev;   /* result of identify */
	u64 ino;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct state);
} states SEC(".maps");

/* jail_cgroup returns the cgroup of the jail of the current task, or 0. */
static __always_inline u64 jail_cgroup(void)
{
	u32 zero = 0;
	struct state *s = bpf_map_lookup_elem(&states, &zero);

	if (!s || !s->jails)
		return 0;
	for (int level = 1; level <= LEVELS; level++) {
		u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			return 0;
		if (bpf_map_lookup_elem(&jails, &id))
			return id;
	}
	return 0;
}

/*
 * identify returns the inode and device that these programs see for a descriptor of the daemon,
 * which runs it. On an overlay, stat(2) returns other numbers.
 */
SEC("raw_tp")
int identify(u64 *ctx)
{
	struct task_struct *t = (void *)bpf_get_current_task();
	struct fdtable *fdt = BPF_CORE_READ(t, files, fdt);
	u32 zero = 0, fd = ctx[0];
	struct inode *inode;
	struct file *f = NULL;
	struct state *s;

	s = bpf_map_lookup_elem(&states, &zero);
	if (!s || !fdt || fd >= BPF_CORE_READ(fdt, max_fds))
		return 0;
	bpf_probe_read_kernel(&f, sizeof(f), BPF_CORE_READ(fdt, fd) + fd);
	if (!f)
		return 0;
	inode = BPF_CORE_READ(f, f_inode);
	s->ino = BPF_CORE_READ(inode, i_ino);
	s->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	return 1;
}

static bool object_denied(u64 cgroup, struct inode *i, u32 what)
{
	struct object t = { .cgroup = cgroup, .ino = i->i_ino, .dev = i->i_sb->s_dev };
	u32 *is = bpf_map_lookup_elem(&objects, &t);

	return is && (*is & what);
}

/*
 * result_of keeps the compiler from computing the result from the condition: since Linux 6.12
 * the verifier must see that it is one of the permitted results.
 */
static __always_inline int result_of(bool no)
{
	int ret = 0;

	if (no) {
		ret = -EPERM;
		asm volatile("" : "+r"(ret));
	}
	return ret;
}

SEC("lsm/bprm_check_security")
int BPF_PROG(run, struct linux_binprm *bprm, int ret)
{
	u64 cgroup;

	if (ret)
		return ret;
	cgroup = jail_cgroup();
	return result_of(cgroup && object_denied(cgroup, bprm->file->f_inode, RUN));
}

/* write_denied reports whether writing is denied for a file or a directory above it. */
static __always_inline bool write_denied(u64 cgroup, struct dentry *d)
{
	for (int i = 0; i < DEPTH; i++) {
		struct inode *inode = d->d_inode;
		struct dentry *up = d->d_parent;

		if (inode && object_denied(cgroup, inode, WRITE))
			return true;
		if (up == d)
			return false;
		d = up;
	}
	return false;
}

SEC("lsm/file_open")
int BPF_PROG(open, struct file *file, int ret)
{
	u64 cgroup;

	if (ret)
		return ret;
	if (!(file->f_mode & FMODE_WRITE))
		return 0;
	cgroup = jail_cgroup();
	return result_of(cgroup && write_denied(cgroup, file->f_path.dentry));
}

/* truncate(2), and open(2) for reading with O_TRUNC. */
SEC("lsm/path_truncate")
int BPF_PROG(cut, struct path *path, int ret)
{
	u64 cgroup;

	if (ret)
		return ret;
	cgroup = jail_cgroup();
	return result_of(cgroup && write_denied(cgroup, path->dentry));
}

SEC("lsm/file_truncate")
int BPF_PROG(cut_open, struct file *file, int ret)
{
	u64 cgroup;

	if (ret)
		return ret;
	cgroup = jail_cgroup();
	return result_of(cgroup && write_denied(cgroup, file->f_path.dentry));
}

static __always_inline bool connection_denied(u64 cgroup, void *address, int len)
{
	struct network n = { .length = 8 * (sizeof(n.cgroup) + sizeof(n.addr)) };
	struct sockaddr a = {};

	if (!address || len < 8 || bpf_probe_read_kernel(&a, 8, address))
		return false;
	if (a.family == AF_INET) {
		n.addr[10] = n.addr[11] = 0xff;
		__builtin_memcpy(n.addr + 12, a.rest, 4);
	} else if (a.family == AF_INET6 && len >= 24) {
		if (bpf_probe_read_kernel(&a, 24, address))
			return false;
		__builtin_memcpy(n.addr, a.rest + 4, 16);
	} else {
		return false;
	}
	__builtin_memcpy(n.cgroup, &cgroup, 8);
	return bpf_map_lookup_elem(&networks, &n);
}

SEC("lsm/socket_connect")
int BPF_PROG(connect, struct socket *sock, struct sockaddr *address, int addrlen, int ret)
{
	u64 cgroup;

	if (ret)
		return ret;
	cgroup = jail_cgroup();
	return result_of(cgroup && connection_denied(cgroup, address, addrlen));
}

/* What is not connected is told with each message where it goes. */
SEC("lsm/socket_sendmsg")
int BPF_PROG(send, struct socket *sock, struct msghdr *msg, int size, int ret)
{
	u64 cgroup;

	if (ret)
		return ret;
	if (!msg->msg_name)
		return 0;
	cgroup = jail_cgroup();
	return result_of(cgroup && connection_denied(cgroup, msg->msg_name, msg->msg_namelen));
}
