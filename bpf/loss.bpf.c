/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
 *
 * Loses packets of a test network, by two tc programs on the bridge-side veth of each rank, where
 * AF_XDP, UDP and TCP all pass.
 *
 * Ingress, what the rank sends: losses of single packets, losses in bursts, and a limit for each
 * UDP flow. Packet n of a port is lost by a hash of (seed, port, n) alone, and by the burst it is
 * in, so a seed repeats its losses for the same packets in the same order. Bursts are the two
 * states of Gilbert and Elliott: all packets pass in one, none in the other. A pause ends a burst.
 * Otherwise a TCP flow that is alone would lose one retransmission after another, each after twice
 * the delay of the one before.
 *
 * Egress, what goes to the rank: a policer. It has no queue: round-trip times stay flat.
 *
 * Only IPv4 packets are lost: a lost ARP request would cost a second, and no counter of the test
 * would show it.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bpf/loss.h"

#define SECOND_NS 1000000000ULL
#define MAX_FLOWS 4096
#define PAUSE_NS 10000000ULL /* far below TCP's shortest retransmission timeout, 200 ms */
#define TRIES 16 /* after so many races lost to other processors, a bucket counts as empty */

struct bucket {
	__u64 full_ns; /* when it is full again */
};

struct flow {
	__be32 source;
	__be32 destination;
	__be16 source_port; /* both ports are 0 in fragments after the first */
	__be16 destination_port;
};

struct burst {
	struct bpf_spin_lock lock;
	__u32 on;
	__u64 seen_ns; /* the latest packet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tarpon_loss_config);
} loss_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARPON_LOSS_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct tarpon_loss_limit);
} loss_police SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARPON_LOSS_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct tarpon_loss_port);
} loss_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARPON_LOSS_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct burst);
} loss_bursts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARPON_LOSS_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct bucket);
} loss_police_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow);
	__type(value, struct bucket);
} loss_flow_buckets SEC(".maps");

/* splitmix64's finalizer: all output bits depend on all input bits. */
static __always_inline __u64 mix(__u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ULL;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Takes room for the packet from the bucket; false when there is not enough. Works without a lock,
 * as the values of LRU maps cannot hold one. */
static __always_inline bool take(struct bucket *bucket, const struct tarpon_loss_limit *limit,
				 __u32 bytes)
{
	const __u64 now = bpf_ktime_get_ns();
	const __u64 cost = bytes * SECOND_NS / limit->bytes_per_second;
	const __u64 depth = limit->burst_bytes * SECOND_NS / limit->bytes_per_second;
	int i;

	for (i = 0; i < TRIES; i++) {
		const __u64 seen = *(volatile __u64 *)&bucket->full_ns;
		const __u64 full = (seen > now ? seen : now) + cost;

		if (full - now > depth)
			return false;
		if (__sync_val_compare_and_swap(&bucket->full_ns, seen, full) == seen)
			return true;
	}
	return false;
}

/* Advances the port's burst state by one packet. Returns whether a burst is on. `chance`: 32 random
 * bits. */
static __always_inline bool in_burst(__u32 port, const struct tarpon_loss_config *config,
				     __u32 chance)
{
	const __u64 now = bpf_ktime_get_ns();
	struct burst *burst;
	bool on;

	if (!config->burst_start)
		return false;
	burst = bpf_map_lookup_elem(&loss_bursts, &port);
	if (!burst)
		return false;
	bpf_spin_lock(&burst->lock);
	if (now - burst->seen_ns > PAUSE_NS)
		burst->on = 0;
	burst->seen_ns = now;
	if (chance < (burst->on ? config->burst_end : config->burst_start))
		burst->on = !burst->on;
	on = burst->on;
	bpf_spin_unlock(&burst->lock);
	return on;
}

/* Returns false when the packet is not UDP. */
static __always_inline bool read_flow(struct __sk_buff *skb, struct flow *flow)
{
	struct iphdr ip;
	__be16 ports[2] = {};

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP)
		return false;
	if (!(ip.frag_off & bpf_htons(0x1fff)))
		bpf_skb_load_bytes(skb, ETH_HLEN + ip.ihl * 4, ports, sizeof(ports));
	flow->source = ip.saddr;
	flow->destination = ip.daddr;
	flow->source_port = ports[0];
	flow->destination_port = ports[1];
	return true;
}

static __always_inline bool above_flow_limit(struct __sk_buff *skb,
					     const struct tarpon_loss_limit *limit)
{
	const struct bucket fresh = {};
	struct bucket *bucket;
	struct flow flow = {};

	if (!limit->bytes_per_second || !read_flow(skb, &flow))
		return false;
	bucket = bpf_map_lookup_elem(&loss_flow_buckets, &flow);
	if (!bucket) {
		bpf_map_update_elem(&loss_flow_buckets, &flow, &fresh, BPF_NOEXIST);
		bucket = bpf_map_lookup_elem(&loss_flow_buckets, &flow);
	}
	return bucket && !take(bucket, limit, skb->len);
}

SEC("tc")
int tarpon_loss(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	const __u32 index = skb->ifindex - TARPON_LOSS_FIRST_IFINDEX;
	const struct tarpon_loss_config *config;
	struct tarpon_loss_port *port;
	__u64 number, hash;
	bool burst;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	config = bpf_map_lookup_elem(&loss_config, &zero);
	port = bpf_map_lookup_elem(&loss_ports, &index);
	if (!config || !port)
		return TC_ACT_OK;

	number = __sync_fetch_and_add(&port->packets, 1);
	hash = mix(mix(config->seed + index * 0x9e3779b97f4a7c15ULL) + number);
	burst = in_burst(index, config, (__u32)hash);
	if (burst || (hash >> 32) < config->threshold) {
		__sync_fetch_and_add(&port->dropped, 1);
		return TC_ACT_SHOT;
	}
	if (above_flow_limit(skb, &config->flow)) {
		__sync_fetch_and_add(&port->limited, 1);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&port->passed, 1);
	return TC_ACT_OK;
}

SEC("tc")
int tarpon_police(struct __sk_buff *skb)
{
	const __u32 index = skb->ifindex - TARPON_LOSS_FIRST_IFINDEX;
	const struct tarpon_loss_limit *limit;
	struct tarpon_loss_port *port;
	struct bucket *bucket;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	limit = bpf_map_lookup_elem(&loss_police, &index);
	port = bpf_map_lookup_elem(&loss_ports, &index);
	bucket = bpf_map_lookup_elem(&loss_police_buckets, &index);
	if (!limit || !port || !bucket || !limit->bytes_per_second)
		return TC_ACT_OK;
	if (take(bucket, limit, skb->len))
		return TC_ACT_OK;
	__sync_fetch_and_add(&port->policed, 1);
	return TC_ACT_SHOT;
}

char tarpon_loss_license[] SEC("license") = "Dual BSD/GPL";
