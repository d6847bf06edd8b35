//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * Records every packet of the watched jails at the jails' interfaces. The programs parse
 * the headers. The reader of the rings assigns flows and host names.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { /* of a jail */
	RECORD = 1 << 0,
	THROTTLE = 1 << 1, /* drop packets that cannot be recorded, instead of counting them as lost */
	MUTED = 1 << 2,
};

enum { /* of a record */
	EGRESS = 0,
	INGRESS = 1,
	LOOPBACK = 2,
	DIRECTION = 3,
	INJECTED = 1 << 2,
	FRAGMENT = 1 << 3, /* not the first fragment of its datagram: no ports */
};

enum { NO_PAYLOAD, DNS, TLS, HTTP }; /* protocols whose payload contains host names */

/* Maximum number of bytes of a payload that are recorded for its host names. */
#define NAMES 4096

#define JAILS 4096

/* A jail, by the inode of its network namespace. Written by user space only. */
struct jail {
	u32 slot;
	u32 flags;
	u32 snap;    /* number of bytes of each packet to record */
	u32 pidns;   /* inode of the pid namespace of the jail */
	__be32 outer; /* the address that source NAT gives to the jail */
	__be32 inner;
	u32 half; /* half the size of its ring */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, JAILS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct jail);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} jails SEC(".maps");

/* Packets that could not be recorded, by slot. said_*: the part that the log contains. */
struct count {
	u64 lost, throttled;
	u64 said_lost, said_throttled;
	u64 pad[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, JAILS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct count);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} counts SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, JAILS);
	__type(key, u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__array(values, struct ring);
} rings SEC(".maps");

/* Whether the reader of the rings sleeps, and which condition wakes it up. */
enum { AWAKE, ASLEEP /* until any record */, ASLEEP_UNTIL_HALF /* until a ring is half full */ };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2); /* one of the above, and the last time at which the reader read */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} asleep SEC(".maps");

/* ns without a read after which the reader counts as dead, if a ring is full */
#define STALE 2000000000ULL

static __always_inline int daemon_alive(void)
{
	u32 one = 1;
	u64 *beat = bpf_map_lookup_elem(&asleep, &one);

	/* The difference is negative if the reader has read since the clock was read. */
	return beat && (__s64)(bpf_ktime_get_ns() - *beat) < (__s64)STALE;
}

/* The owner of a socket: the thread that created it or used it last. */
struct owner {
	u32 pid, tid; /* in the pid namespace of the jail; 0 if not in it */
	u32 host_pid, host_tid;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	/* BPF_F_CLONE: an accepted socket inherits the owner of its listener. */
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct owner);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} owners SEC(".maps");

struct record {
	u64 ns;
	u32 lost, throttled; /* of this jail so far, modulo 2^32 */
	u32 len;             /* from the network layer header */
	u32 ifindex;
	u32 segments;
	u16 ethertype;
	u16 sport, dport;
	u16 link;    /* length of the link layer header */
	u16 payload; /* offset of the payload in the frame */
	u8 proto;
	u8 tcp;
	u8 flags;
	u8 worth;
	u16 pad;
	u32 kept; /* number of bytes of the frame that follow this record */
	u8 src[16], dst[16];
	struct owner owner;
};

const struct record *unused_record __attribute__((unused)); /* bpf2go generates a Go type for it */

/* ---- owners of sockets ---- */

/* pid_in_namespace returns the number of pid in its own pid namespace or an ancestor of that. */
static __always_inline u32 pid_in_namespace(struct pid *pid, u32 pidns)
{
	u32 level = BPF_CORE_READ(pid, level);

	for (int up = 0; up < 8; up++) {
		struct upid u = {};

		if (level < up || level - up > 32)
			return 0;
		if (bpf_core_read(&u, sizeof(u), &pid->numbers[level - up]))
			return 0;
		if (BPF_CORE_READ(u.ns, ns.inum) == pidns)
			return u.nr;
	}
	return 0;
}

static __always_inline void set_owner(struct owner *o, const struct jail *j)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	u64 id = bpf_get_current_pid_tgid();

	o->host_pid = id >> 32;
	o->host_tid = (u32)id;
	o->tid = pid_in_namespace(BPF_CORE_READ(task, thread_pid), j->pidns);
	o->pid = pid_in_namespace(BPF_CORE_READ(task, group_leader, thread_pid), j->pidns);
	bpf_core_read(&o->comm, sizeof(o->comm), &task->comm);
}

static __always_inline struct jail *current_jail(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	u32 netns = BPF_CORE_READ(task, nsproxy, net_ns, ns.inum);

	return bpf_map_lookup_elem(&jails, &netns);
}

/* A process that creates, binds or connects a socket, or sends from it unconnected, becomes
 * its owner. */
#define HOOK(name, section, context, socket)                                                    \
	SEC(section) int name(context *ctx)                                                     \
	{                                                                                       \
		struct jail *j = current_jail();                                                        \
		struct owner *o;                                                                \
		if (!j)                                                                         \
			return 1;                                                               \
		o = bpf_sk_storage_get(&owners, socket, NULL, BPF_SK_STORAGE_GET_F_CREATE);     \
		if (o && o->host_tid != (u32)bpf_get_current_pid_tgid())                        \
			set_owner(o, j);                                                              \
		return 1;                                                                       \
	}

HOOK(create, "cgroup/sock_create", struct bpf_sock, ctx)
HOOK(bind4, "cgroup/post_bind4", struct bpf_sock, ctx)
HOOK(bind6, "cgroup/post_bind6", struct bpf_sock, ctx)
HOOK(connect4, "cgroup/connect4", struct bpf_sock_addr, ctx->sk)
HOOK(connect6, "cgroup/connect6", struct bpf_sock_addr, ctx->sk)
HOOK(send4, "cgroup/sendmsg4", struct bpf_sock_addr, ctx->sk)
HOOK(send6, "cgroup/sendmsg6", struct bpf_sock_addr, ctx->sk)

/* A process that has sent or received through a socket becomes its owner. */
static __always_inline int update_owner(struct sock *sk)
{
	struct owner *o;
	struct jail *j;
	u32 netns;

	if (!sk)
		return 0;
	o = bpf_sk_storage_get(&owners, sk, NULL, 0);
	if (o && o->host_tid == (u32)bpf_get_current_pid_tgid())
		return 0;
	if (sk->__sk_common.skc_family != 2 && sk->__sk_common.skc_family != 10)
		return 0;
	netns = sk->__sk_common.skc_net.net->ns.inum;
	j = bpf_map_lookup_elem(&jails, &netns);
	if (!j)
		return 0;
	if (!o)
		o = bpf_sk_storage_get(&owners, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (o)
		set_owner(o, j);
	return 0;
}

SEC("tp_btf/sock_send_length") int BPF_PROG(sent, struct sock *sk) { return update_owner(sk); }
SEC("tp_btf/sock_recv_length") int BPF_PROG(received, struct sock *sk) { return update_owner(sk); }

/* ---- headers ---- */

static __always_inline int has_ports(u8 proto)
{
	return proto == 6 || proto == 17 || proto == 132 || proto == 136 || proto == 33;
}

/* transport parses the transport layer header at off. */
static __always_inline void transport(struct __sk_buff *skb, struct record *r, u32 off)
{
	u8 h[14];
	__be16 port[2];

	if (r->flags & FRAGMENT)
		return;
	if (r->proto == 1 || r->proto == 58) { /* an echo is told from others by its number */
		if (bpf_skb_load_bytes(skb, off, h, 8))
			return;
		if (h[0] == 0 || h[0] == 8 || h[0] == 128 || h[0] == 129)
			r->sport = r->dport = (u16)h[4] << 8 | h[5];
		return;
	}
	if (!has_ports(r->proto))
		return;
	if (bpf_skb_load_bytes(skb, off, port, sizeof(port)))
		return;
	r->sport = bpf_ntohs(port[0]);
	r->dport = bpf_ntohs(port[1]);
	if (r->proto == 17) {
		r->payload = off + 8;
		if (r->sport == 53 && (r->flags & DIRECTION) != EGRESS)
			r->worth = DNS;
		return;
	}
	if (r->proto != 6 || bpf_skb_load_bytes(skb, off, h, sizeof(h)))
		return;
	r->tcp = h[13];
	r->payload = off + (h[12] >> 4) * 4;
	if (r->payload + 8 > skb->len)
		return;
	if (r->sport == 53 && (r->flags & DIRECTION) != EGRESS) {
		r->worth = DNS;
		return;
	}
	if ((r->flags & DIRECTION) == INGRESS || bpf_skb_load_bytes(skb, r->payload, h, 8))
		return;
	if (h[0] == 22 && h[1] == 3 && h[5] == 1) {
		r->worth = TLS;
		return;
	}
	switch ((u32)h[0] << 24 | (u32)h[1] << 16 | (u32)h[2] << 8 | h[3]) {
	case 0x47455420: /* "GET " */
	case 0x504f5354: /* "POST" */
	case 0x48454144: /* "HEAD" */
	case 0x50555420: /* "PUT " */
	case 0x44454c45: /* "DELE" */
	case 0x50415443: /* "PATC" */
	case 0x4f505449: /* "OPTI" */
		r->worth = HTTP;
	}
}

static __always_inline void ip4(struct __sk_buff *skb, struct record *r, u32 off)
{
	u8 h[20];

	if (bpf_skb_load_bytes(skb, off, h, sizeof(h)))
		return;
	__builtin_memcpy(r->src, h + 12, 4);
	__builtin_memcpy(r->dst, h + 16, 4);
	r->proto = h[9];
	if ((h[6] & 0x1f) | h[7])
		r->flags |= FRAGMENT;
	transport(skb, r, off + (h[0] & 15) * 4);
}

static __always_inline void ip6(struct __sk_buff *skb, struct record *r, u32 off)
{
	u8 next, h[4];

	if (bpf_skb_load_bytes(skb, off + 6, &next, 1) || bpf_skb_load_bytes(skb, off + 8, r->src, 16) ||
	    bpf_skb_load_bytes(skb, off + 24, r->dst, 16))
		return;
	off += 40;
	for (int i = 0; i < 8; i++) {
		if (next != 0 && next != 43 && next != 44 && next != 51 && next != 60 && next != 135)
			break;
		if (bpf_skb_load_bytes(skb, off, h, sizeof(h)))
			break;
		if (next == 44 && (h[2] | (h[3] & 0xf8)))
			r->flags |= FRAGMENT;
		off += next == 44 ? 8 : next == 51 ? (h[1] + 2) * 4 : (h[1] + 1) * 8;
		next = h[0];
		if (r->flags & FRAGMENT)
			break;
	}
	r->proto = next;
	transport(skb, r, off);
}

/* ---- owners of packets ---- */

static __always_inline void copy_owner(struct record *r, struct bpf_sock *sk)
{
	struct owner *o = bpf_sk_storage_get(&owners, sk, NULL, 0);

	if (o)
		r->owner = *o;
}

/* sender sets the owner of an outgoing packet, by its socket. */
static __always_inline void sender(struct __sk_buff *skb, struct record *r)
{
	struct bpf_sock *sk = skb->sk, *full;

	if (!sk)
		return;
	full = bpf_sk_fullsock(sk);
	if (!full)
		full = bpf_get_listener_sock(sk); /* of a connection that is not accepted yet */
	if (full)
		copy_owner(r, full);
}

/* receiver sets the owner of an incoming packet, by the socket that will receive it. */
static __always_inline void receiver(struct __sk_buff *skb, struct record *r, const struct jail *j)
{
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;
	u32 size;

	if ((r->proto != 6 && r->proto != 17) || r->flags & FRAGMENT)
		return;
	if (r->ethertype == 0x0800) {
		__builtin_memcpy(&t.ipv4.saddr, r->src, 4);
		__builtin_memcpy(&t.ipv4.daddr, r->dst, 4);
		if (j->outer && t.ipv4.daddr == j->outer)
			t.ipv4.daddr = j->inner;
		t.ipv4.sport = bpf_htons(r->sport);
		t.ipv4.dport = bpf_htons(r->dport);
		size = sizeof(t.ipv4);
	} else {
		__builtin_memcpy(t.ipv6.saddr, r->src, 16);
		__builtin_memcpy(t.ipv6.daddr, r->dst, 16);
		t.ipv6.sport = bpf_htons(r->sport);
		t.ipv6.dport = bpf_htons(r->dport);
		size = sizeof(t.ipv6);
	}
	if (r->proto == 6)
		sk = bpf_sk_lookup_tcp(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_udp(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return;
	copy_owner(r, sk);
	bpf_sk_release(sk);
}

/* ---- records ---- */

/* wakeup_flags returns the flags for submitting a reserved record. The state of the reader is
 * read after the reservation, and the reader looks for reservations after it has set its
 * state, so that no wakeup is missed. */
static __always_inline u64 wakeup_flags(void *ring, const struct jail *j)
{
	u32 zero = 0;
	u64 *sleep = bpf_map_lookup_elem(&asleep, &zero);

	if (!sleep || *sleep == AWAKE)
		return BPF_RB_NO_WAKEUP;
	if (*sleep == ASLEEP_UNTIL_HALF && bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) < j->half)
		return BPF_RB_NO_WAKEUP;
	*sleep = AWAKE;
	return BPF_RB_FORCE_WAKEUP;
}

/* WRITE writes a record and the first r->kept bytes of the frame, for which it reserves room
 * bytes. bpf_skb_load_bytes does not accept a length of 0. The verifier of Linux 6.1, unlike
 * that of 6.12, derives no bound from n != 0, so n is the length minus one until it is
 * bounded. */
#define WRITE(room)                                                                             \
	{                                                                                       \
		struct record *at = bpf_ringbuf_reserve(ring, sizeof(*r) + (room), 0);          \
		u64 n = (u64)r->kept - 1;                                                       \
		if (!at)                                                                        \
			return -1;                                                              \
		barrier_var(n);                                                                 \
		if ((room) && n < (room)) {                                                     \
			barrier_var(n);                                                         \
			n++;                                                                    \
			barrier_var(n);                                                         \
			if (bpf_skb_load_bytes(skb, 0, at + 1, n))                              \
				r->kept = 0, r->worth = NO_PAYLOAD;                                \
		}                                                                               \
		*at = *r;                                                                       \
		bpf_ringbuf_submit(at, wakeup_flags(ring, j));                                        \
		return 0;                                                                       \
	}

/* Keeps the compiler from merging two comparisons into one that the verifier does not
 * understand. */
#undef barrier_var
#define barrier_var(v) asm volatile("" : "+r"(v))

static __always_inline int write(struct __sk_buff *skb, void *ring, struct record *r, const struct jail *j)
{
	if (r->kept == 0)
		WRITE(0)
	if (r->kept <= 128)
		WRITE(128)
	if (r->kept <= 512)
		WRITE(512)
	if (r->kept <= 1536)
		WRITE(1536)
	if (r->kept <= NAMES + 128)
		WRITE(NAMES + 128)
	if (r->kept <= 16384)
		WRITE(16384)
	if (r->kept <= 32768)
		WRITE(32768)
	WRITE(65536)
}

static __always_inline int packet(struct __sk_buff *skb, u32 direction, u32 link)
{
	struct sk_buff *own = (void *)skb;
	u32 netns = BPF_CORE_READ(own, dev, nd_net.net, ns.inum);
	struct jail *j = bpf_map_lookup_elem(&jails, &netns);
	struct record r = {};
	struct count *c;
	void *ring;
	u32 slot;

	if (!j || !(j->flags & RECORD))
		return TC_ACT_UNSPEC;
	/* The copy of a multicast packet that the jail itself has sent; recorded on egress. */
	if (direction == INGRESS && skb->pkt_type == PACKET_LOOPBACK)
		return TC_ACT_UNSPEC;
	slot = j->slot;
	c = bpf_map_lookup_elem(&counts, &slot);
	if (!c)
		return TC_ACT_UNSPEC;

	r.ns = bpf_ktime_get_ns();
	r.lost = c->lost;
	r.throttled = c->throttled;
	r.flags = direction | (j->flags & MUTED ? INJECTED : 0);
	r.len = skb->len - link;
	r.link = link;
	r.ifindex = skb->ifindex;
	r.segments = skb->gso_segs;
	r.ethertype = bpf_ntohs(skb->protocol);
	if (r.ethertype == 0x0800) {
		ip4(skb, &r, link);
	} else if (r.ethertype == 0x86dd) {
		ip6(skb, &r, link);
	} else if (r.ethertype == 0x0806) {
		bpf_skb_load_bytes(skb, link + 14, r.src, 4);
		bpf_skb_load_bytes(skb, link + 24, r.dst, 4);
	} else if (link) {
		bpf_skb_load_bytes(skb, 0, r.dst, 6);
		bpf_skb_load_bytes(skb, 6, r.src, 6);
	}
	if (direction == INGRESS)
		receiver(skb, &r, j);
	else
		sender(skb, &r);

	r.kept = j->snap;
	if (r.worth != NO_PAYLOAD && r.kept < r.payload + NAMES)
		r.kept = r.payload + NAMES;
	if (r.kept > skb->len)
		r.kept = skb->len;
	if (r.kept > 65536)
		r.kept = 65536;
	ring = bpf_map_lookup_elem(&rings, &slot);
	if (ring && !write(skb, ring, &r, j))
		return TC_ACT_UNSPEC;
	/* Without a daemon packets pass, and those that are not recorded are counted. */
	if ((j->flags & THROTTLE) && daemon_alive()) {
		__sync_fetch_and_add(&c->throttled, 1);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&c->lost, 1);
	return TC_ACT_UNSPEC;
}

/* One program for each kind of interface and direction. */
SEC("tc") int loopback(struct __sk_buff *skb) { return packet(skb, LOOPBACK, 14); }
SEC("tc") int egress(struct __sk_buff *skb) { return packet(skb, EGRESS, 14); }
SEC("tc") int ingress(struct __sk_buff *skb) { return packet(skb, INGRESS, 14); }
SEC("tc") int egress_bare(struct __sk_buff *skb) { return packet(skb, EGRESS, 0); }
SEC("tc") int ingress_bare(struct __sk_buff *skb) { return packet(skb, INGRESS, 0); }
