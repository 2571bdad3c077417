/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0
 *
 * Tells Tarpon's frames from others: the parser that the XDP program and user space share, and the
 * layout of the program's maps (tarpon.bpf.c).
 *
 * A frame of Tarpon is Ethernet, IPv4 without options and fragments, UDP, then the header of
 * wire.h. All other frames belong to the kernel.
 */
#ifndef TARPON_BPF_PACKET_H
#define TARPON_BPF_PACKET_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <linux/udp.h>

#include "bpf/wire.h"

/* Bytes before the payload of a frame. */
#define TARPON_FRAME_HEADER_BYTES                                                                  \
	(sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) + TARPON_HEADER_BYTES)

/* Verdicts on a frame, in the order of the checks. Each has its own counter. */
enum tarpon_verdict {
	/* Not ours: passed to the kernel. */
	TARPON_VERDICT_SHORT,    /* no room for the headers that it claims */
	TARPON_VERDICT_NOT_IPV4, /* another protocol, or IPv4 with options */
	TARPON_VERDICT_FRAGMENT,
	TARPON_VERDICT_NOT_UDP,
	TARPON_VERDICT_NO_PORT, /* UDP to a port that is not ours */
	/* Addressed to one of our ports, but passed to the kernel and not to the ring. The kernel
	 * drops frames to other MACs and with wrong IPv4 headers itself; the UDP socket of the port
	 * refuses or counts the rest. */
	TARPON_VERDICT_MAC,      /* to another MAC than the entry's: broadcast too */
	TARPON_VERDICT_CHECKSUM, /* wrong checksum of the IPv4 header */
	TARPON_VERDICT_LENGTH,   /* IPv4, UDP and frame lengths disagree, or the header is cut off */
	TARPON_VERDICT_MAGIC,
	TARPON_VERDICT_VERSION,
	TARPON_VERDICT_JOB,
	TARPON_VERDICT_TYPE,
	TARPON_VERDICT_FIELDS,
	TARPON_VERDICT_QUEUE, /* arrived on a queue that is not the port's */
	/* Ours. */
	TARPON_VERDICT_CLOSED, /* first-time DATA of a closed operation: dropped */
	TARPON_VERDICT_RING,   /* to the AF_XDP socket */
	TARPON_VERDICT_COUNT
};

static inline enum tarpon_verdict tarpon_verdict_of(enum tarpon_header_verdict verdict)
{
	switch (verdict) {
	case TARPON_HEADER_MAGIC:
		return TARPON_VERDICT_MAGIC;
	case TARPON_HEADER_VERSION:
		return TARPON_VERDICT_VERSION;
	case TARPON_HEADER_JOB:
		return TARPON_VERDICT_JOB;
	case TARPON_HEADER_TYPE:
		return TARPON_VERDICT_TYPE;
	case TARPON_HEADER_FIELDS:
		return TARPON_VERDICT_FIELDS;
	case TARPON_HEADER_OK:
		break;
	}
	return TARPON_VERDICT_RING;
}

/* Hash map "tarpon_ports": the ports that listen. The multicast group of a job has an entry of its
 * own, with the queues, job and index of its port. */
struct tarpon_port_key {
	__be32 address;
	__be16 port;
	__u16 zero;
};

struct tarpon_port_entry {
	__u64 queues; /* bit q: receive queue q redirects to this port's socket */
	__u32 job;
	__u32 index; /* its first queue; the index of its slot, windows and late counters */
	__u8 mac[ETH_ALEN]; /* of the interface, or of the group */
	__u16 zero;
};
TARPON_ASSERT(sizeof(struct tarpon_port_entry) == 24);

/* Returns the key in one word, which is never 0. */
static inline __u64 tarpon_port_word(const struct tarpon_port_key *key)
{
	return 1ull << 48 | (__u64)key->port << 32 | key->address;
}

#define TARPON_MAX_PORTS 64u  /* on one interface */
#define TARPON_MAX_ENTRIES (2 * TARPON_MAX_PORTS) /* of "tarpon_ports": a port may have a group */
#define TARPON_MAX_QUEUES 64u /* XSKMAP "tarpon_xsks", by receive queue */
#define TARPON_MAX_SENDERS 64u

/* Array map "tarpon_slots", mmap-able, indexed by the port's index, which is its first queue.
 * Packets on that queue find their port here, without a hash lookup. */
struct tarpon_port_slot {
	__u64 port; /* tarpon_port_word() of its key; 0: none */
	struct tarpon_port_entry entry;
};

/* Array of maps "tarpon_windows", indexed by the port's index. Each port has an mmap-able array map
 * of its own there, with one entry, so that no process can write the windows of a port that is not
 * its own. The entry says which operations of a few tags are closed: user space moves a window with
 * one store. Packets of tags without a window pass. */
#define TARPON_WINDOW_TAGS 16u
struct tarpon_windows {
	__u64 lowest[TARPON_WINDOW_TAGS]; /* tarpon_window(); indexed by tarpon_window_slot(tag) */
};

#define TARPON_NO_WINDOW 0xffffffffffffffffull

static inline __u32 tarpon_window_slot(__u32 tag)
{
	return (tag * 2654435761u) >> 28;
}

/* Returns the window which says that all operations of `tag` below `lowest` are closed. */
static inline __u64 tarpon_window(__u32 tag, __u32 lowest)
{
	return (__u64)tag << 32 | lowest;
}

static inline int tarpon_is_closed(__u64 window, const struct tarpon_header *header)
{
	return window != TARPON_NO_WINDOW && window >> 32 == header->tag &&
	       (__s32)(header->operation - (__u32)window) < 0;
}

/* Whether a driver may drop a packet with `header` when its operation is closed. The last packets
 * of a message pass: their receiver answers, and so a late sender learns that the operation is
 * over. The windows are those of communicator 0, so packets of other communicators pass. */
static inline int tarpon_may_drop(const struct tarpon_header *header)
{
	return header->type == TARPON_DATA && header->communicator == 0 &&
	       !(header->flags & (TARPON_FLAG_REPAIR | TARPON_FLAG_TAIL));
}

/* Per-CPU array map "tarpon_counts": frames by enum tarpon_verdict.
 * Per-CPU array map "tarpon_late": frames dropped as closed, at index * TARPON_MAX_SENDERS +
 * sender. */

/* Finds the header of Tarpon in a frame of `bytes` bytes, the first of which lie at [data, end); a
 * frame of several buffers has more. Returns TARPON_VERDICT_RING when the frame has the shape of a
 * UDP datagram, and another verdict when it has not. With TARPON_VERDICT_RING it sets `key` to the
 * destination, `*header` and `*payload_bytes`. A datagram that is not of Tarpon may give 0 or a
 * negative number of payload bytes. */
static inline enum tarpon_verdict tarpon_parse_frame(const void *data, const void *end, __u32 bytes,
						     struct tarpon_port_key *key,
						     const struct tarpon_header **header,
						     __s32 *payload_bytes)
{
	const struct ethhdr *ethernet = (const struct ethhdr *)data;
	const struct iphdr *ip = (const struct iphdr *)(ethernet + 1);
	const struct udphdr *udp = (const struct udphdr *)(ip + 1);
	__u32 total;

	if ((const void *)(ethernet + 1) > end)
		return TARPON_VERDICT_SHORT;
	if (ethernet->h_proto != __constant_htons(ETH_P_IP))
		return TARPON_VERDICT_NOT_IPV4;
	if ((const void *)(ip + 1) > end)
		return TARPON_VERDICT_SHORT;
	if (ip->version != 4 || ip->ihl != 5)
		return TARPON_VERDICT_NOT_IPV4;
	if (ip->frag_off & __constant_htons(0x3fff))
		return TARPON_VERDICT_FRAGMENT;
	if (ip->protocol != IPPROTO_UDP)
		return TARPON_VERDICT_NOT_UDP;
	if ((const void *)(udp + 1) > end)
		return TARPON_VERDICT_SHORT;
	key->address = ip->daddr;
	key->port = udp->dest;
	key->zero = 0;
	total = __builtin_bswap16(ip->tot_len);
	*header = (const struct tarpon_header *)(udp + 1);
	*payload_bytes = -1;
	if ((const void *)(*header + 1) <= end && total + sizeof(*ethernet) <= bytes &&
	    total >= TARPON_FRAME_HEADER_BYTES - sizeof(*ethernet) &&
	    __builtin_bswap16(udp->len) == total - sizeof(*ip))
		*payload_bytes = (__s32)(total - (__u32)(TARPON_FRAME_HEADER_BYTES - sizeof(*ethernet)));
	return TARPON_VERDICT_RING;
}

typedef __u16 __attribute__((may_alias)) tarpon_half_word;

/* Checks the headers below ours as the kernel would. Returns TARPON_VERDICT_RING when the frame is
 * addressed to `mac` and the checksum of its IPv4 header is right. Frames of a network card that
 * strips VLAN tags look like untagged ones here. REQUIRES: tarpon_parse_frame() found a datagram at
 * `data`. */
static inline enum tarpon_verdict tarpon_check_lower(const void *data, const __u8 *mac)
{
	const tarpon_half_word *to = (const tarpon_half_word *)data;
	const tarpon_half_word *wanted = (const tarpon_half_word *)mac;
	const tarpon_half_word *ip =
		(const tarpon_half_word *)((const __u8 *)data + sizeof(struct ethhdr));
	__u32 sum;

	if (to[0] != wanted[0] || to[1] != wanted[1] || to[2] != wanted[2])
		return TARPON_VERDICT_MAC;
	sum = (__u32)ip[0] + ip[1] + ip[2] + ip[3] + ip[4] + ip[5] + ip[6] + ip[7] + ip[8] + ip[9];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff ? TARPON_VERDICT_RING : TARPON_VERDICT_CHECKSUM;
}
#endif
