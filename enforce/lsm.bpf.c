//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * What no process of a jail may do whatever anybody decides, refused where the
 * kernel has resolved it: a file that is to be run or opened for writing, an
 * address that is to be connected to. Memory and names cannot change any more.
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

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_LPM_TRIE = 11,
};

#define BPF_F_NO_PREALLOC 1
#define EPERM 1
#define AF_INET 2
#define AF_INET6 10
#define FMODE_WRITE 2
#define DEPTH 64 /* of directories */

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
	RUN = 1,   /* it must not be run */
	WRITE = 2, /* it must not be opened for writing, nor what is below it */
};

struct thing {
	u64 cgroup;
	u64 ino;
	u32 dev;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thing);
	__type(value, u32);
} things SEC(".maps");

/* The length counts the cgroup's bits, which come first. */
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

static bool denied(u64 cgroup, struct inode *i, u32 what)
{
	struct thing t = { .cgroup = cgroup, .ino = i->i_ino, .dev = i->i_sb->s_dev };
	u32 *is = bpf_map_lookup_elem(&things, &t);

	return is && (*is & what);
}

SEC("lsm/bprm_check_security")
int BPF_PROG(run, struct linux_binprm *bprm, int ret)
{
	if (ret)
		return ret;
	return denied(bpf_get_current_cgroup_id(), bprm->file->f_inode, RUN) ? -EPERM : 0;
}

SEC("lsm/file_open")
int BPF_PROG(open, struct file *file, int ret)
{
	struct dentry *d = file->f_path.dentry;
	u64 cgroup;

	if (ret)
		return ret;
	if (!(file->f_mode & FMODE_WRITE))
		return 0;
	cgroup = bpf_get_current_cgroup_id();
	if (denied(cgroup, file->f_inode, WRITE))
		return -EPERM;
	for (int i = 0; i < DEPTH; i++) {
		struct dentry *up = d->d_parent;

		if (up == d)
			return 0;
		d = up;
		if (denied(cgroup, d->d_inode, WRITE))
			return -EPERM;
	}
	return 0;
}

SEC("lsm/socket_connect")
int BPF_PROG(connect, struct socket *sock, struct sockaddr *address, int addrlen, int ret)
{
	struct network n = { .length = 8 * (sizeof(n.cgroup) + sizeof(n.addr)) };
	u64 cgroup = bpf_get_current_cgroup_id();
	struct sockaddr a = {};

	if (ret)
		return ret;
	if (addrlen < 8 || bpf_probe_read_kernel(&a, 8, address))
		return 0;
	if (a.family == AF_INET) {
		n.addr[10] = n.addr[11] = 0xff;
		__builtin_memcpy(n.addr + 12, a.rest, 4);
	} else if (a.family == AF_INET6 && addrlen >= 24) {
		if (bpf_probe_read_kernel(&a, 24, address))
			return 0;
		__builtin_memcpy(n.addr, a.rest + 4, 16);
	} else {
		return 0;
	}
	__builtin_memcpy(n.cgroup, &cgroup, 8);
	return bpf_map_lookup_elem(&networks, &n) ? -EPERM : 0;
}
