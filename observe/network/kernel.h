/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few types of the kernel that the programs look into, so that its headers
 * need not be here. The first part is what the kernel promises to programs; the
 * second is its own, where offsets are filled in when a program is loaded (CO-RE).
 */
#ifndef GLASSHOUSE_NETWORK_KERNEL_H
#define GLASSHOUSE_NETWORK_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef signed short __s16;
typedef signed int __s32;
typedef signed long long __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
typedef u32 __wsum;
typedef u16 __sum16;

#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_CLONE = 1 << 9,
	BPF_F_MMAPABLE = 1 << 10,
};

#define BPF_SK_STORAGE_GET_F_CREATE 1
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0
#define BPF_F_CURRENT_NETNS (-1L)

#define TC_ACT_UNSPEC (-1) /* the next program decides */
#define TC_ACT_SHOT 2

#define PACKET_LOOPBACK 5

struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
};

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	union {
		struct bpf_sock *sk;
		__u64 sk_pad;
	};
};

struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4;
	__u32 user_ip6[4];
	__u32 user_port;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 msg_src_ip4;
	__u32 msg_src_ip6[4];
	union {
		struct bpf_sock *sk;
		__u64 sk_pad;
	};
};

struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr, daddr;
			__be16 sport, dport;
		} ipv4;
		struct {
			__be32 saddr[4], daddr[4];
			__be16 sport, dport;
		} ipv6;
	};
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	possible_net_t nd_net;
};
struct sk_buff {
	struct net_device *dev;
};
struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
};
struct sock {
	struct sock_common __sk_common;
};
struct pid_namespace {
	struct ns_common ns;
};
struct upid { /* whole: its size is that of an element of pid.numbers */
	int nr;
	struct pid_namespace *ns;
};
struct pid {
	unsigned int level;
	struct upid numbers[1];
};
struct nsproxy {
	struct net *net_ns;
};
struct task_struct {
	int pid, tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct nsproxy *nsproxy;
	char comm[16];
};

#pragma clang attribute pop

#endif
