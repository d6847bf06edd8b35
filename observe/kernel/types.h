/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few types of the kernel that the programs look into. Offsets are filled in
 * when a program is loaded, from the running kernel's own description (CO-RE), so
 * only names and types must be right here.
 */
#ifndef GLASSHOUSE_TYPES_H
#define GLASSHOUSE_TYPES_H

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
typedef signed short __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
typedef u32 __wsum;
typedef u16 __sum16;
typedef _Bool bool;
enum { false, true };

#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum { BPF_ANY, BPF_NOEXIST, BPF_EXIST };

#define BPF_F_NO_PREALLOC 1
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_F_INNER_MAP (1U << 12)
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
struct thread_info {
	u32 status;
};
struct pt_regs {
	unsigned long bx, cx, dx, si, di, bp, r8, r9, r10, orig_ax;
};
#elif defined(__TARGET_ARCH_arm64)
struct thread_info {
	unsigned long flags;
};
struct pt_regs {
	u64 regs[31];
	u64 orig_x0;
	s32 syscallno;
};
#else
#error "an architecture the programs do not know"
#endif

struct upid {
	int nr;
};
struct pid_namespace;
struct pid {
	unsigned int level;
	struct upid numbers[1];
};
struct pid_namespace {
	struct task_struct *child_reaper;
	unsigned int level;
	struct pid_namespace *parent;
};
struct nsproxy {
	struct pid_namespace *pid_ns_for_children;
};
struct qstr {
	u64 hash_len;
	const unsigned char *name;
};
struct super_block {
	unsigned long s_magic;
};
struct inode {
	u16 i_mode;
	struct super_block *i_sb;
};
struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};
struct vfsmount {
	struct dentry *mnt_root;
};
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};
struct file {
	struct path f_path;
	struct inode *f_inode;
	u32 f_mode;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
struct fs_struct {
	struct path root;
	struct path pwd;
};
struct mm_struct {
	unsigned long arg_start, arg_end;
	struct file *exe_file;
};
typedef struct {
	unsigned int val;
} kuid_t;
typedef struct {
	unsigned int val;
} kgid_t;
struct cred {
	kuid_t uid;
	kgid_t gid;
};
typedef struct {
	int counter;
} atomic_t;
struct signal_struct {
	atomic_t live;
	u64 utime, stime;
	unsigned long maxrss;
};
struct task_struct {
	struct thread_info thread_info;
	int pid, tgid;
	struct task_struct *real_parent, *group_leader;
	struct pid *thread_pid;
	u64 utime, stime;
	u64 start_time;
	const struct cred *real_cred;
	char comm[16];
	struct fs_struct *fs;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
	struct mm_struct *mm;
	int exit_code;
};
struct linux_binprm;

#pragma clang attribute pop

#endif
