/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
 *
 * Loses packets of a test network: tc, ingress of the bridge-side veth of each rank, where AF_XDP,
 * UDP and TCP all pass. Packet n of a port is lost by a hash of (seed, port, n) alone, so a seed
 * repeats its losses for the same packets in the same order. Only IPv4 is lost: an ARP request that
 * vanished would cost a second, and would stand in no counter of the test.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bpf/loss.h"

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
	__type(value, struct tarpon_loss_port);
} loss_ports SEC(".maps");

/* splitmix64's finalizer: all output bits depend on all input bits. */
static __always_inline __u64 mix(__u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ULL;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

SEC("tc")
int tarpon_loss(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	const __u32 index = skb->ifindex - TARPON_LOSS_FIRST_IFINDEX;
	const struct tarpon_loss_config *config;
	struct tarpon_loss_port *port;
	__u64 number, hash;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	config = bpf_map_lookup_elem(&loss_config, &zero);
	port = bpf_map_lookup_elem(&loss_ports, &index);
	if (!config || !port)
		return TC_ACT_OK;

	number = __sync_fetch_and_add(&port->packets, 1);
	hash = mix(mix(config->seed + index * 0x9e3779b97f4a7c15ULL) + number);
	if ((hash >> 32) < config->threshold) {
		__sync_fetch_and_add(&port->dropped, 1);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&port->passed, 1);
	return TC_ACT_OK;
}

char tarpon_loss_license[] SEC("license") = "Dual BSD/GPL";
