/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
 *
 * Sends the packets of Tarpon's ports to their AF_XDP sockets, and everything else to the kernel.
 * Fails open: without a socket, a port or a window a packet takes the kernel's path, where an
 * ordinary UDP socket waits for it. The only packets that die here are first-time DATA of
 * operations that are over.
 *
 * Maps and parser: bpf/packet.h.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TARPON_MAX_ENTRIES);
	__type(key, struct tarpon_port_key);
	__type(value, struct tarpon_port_entry);
} tarpon_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, TARPON_MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} tarpon_xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TARPON_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct tarpon_port_slot);
} tarpon_slots SEC(".maps");

/* In sizes: clang leaves out types that are only named in the map of a map. */
struct windows_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct tarpon_windows));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TARPON_MAX_PORTS);
	__type(key, __u32);
	__array(values, struct windows_map);
} tarpon_windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TARPON_VERDICT_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} tarpon_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TARPON_MAX_PORTS * TARPON_MAX_SENDERS);
	__type(key, __u32);
	__type(value, __u64);
} tarpon_late SEC(".maps");

static __always_inline void add_one(void *map, __u32 index)
{
	__u64 *count = bpf_map_lookup_elem(map, &index);

	if (count)
		++*count;
}

/* Whether the operation of a packet is closed at the port with `index`. */
static __always_inline int is_closed(__u32 index, const struct tarpon_header *header)
{
	const struct tarpon_windows *windows;
	const __u32 only = 0;
	void *map;

	map = bpf_map_lookup_elem(&tarpon_windows, &index);
	if (!map)
		return 0;
	windows = bpf_map_lookup_elem(map, &only);
	return windows && tarpon_is_closed(windows->lowest[tarpon_window_slot(header->tag)], header);
}

static __always_inline enum tarpon_verdict judge(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const __u32 queue = ctx->rx_queue_index;
	const struct tarpon_port_entry *entry;
	const struct tarpon_port_slot *slot;
	const struct tarpon_header *header;
	struct tarpon_port_key key;
	enum tarpon_verdict verdict;
	__s32 payload_bytes;

	verdict = tarpon_parse_frame(data, end, (__u32)bpf_xdp_get_buff_len(ctx), &key, &header,
				     &payload_bytes);
	if (verdict != TARPON_VERDICT_RING)
		return verdict;
	slot = bpf_map_lookup_elem(&tarpon_slots, &queue);
	if (slot && slot->port == tarpon_port_word(&key)) {
		entry = &slot->entry;
	} else {
		entry = bpf_map_lookup_elem(&tarpon_ports, &key);
		if (!entry)
			return TARPON_VERDICT_NO_PORT;
	}
	verdict = tarpon_check_lower(data, entry->mac);
	if (verdict != TARPON_VERDICT_RING)
		return verdict;
	if (payload_bytes < 0 || (const void *)(header + 1) > end)
		return TARPON_VERDICT_LENGTH;
	verdict = tarpon_verdict_of(tarpon_check_header(header, entry->job, (__u32)payload_bytes));
	if (verdict != TARPON_VERDICT_RING)
		return verdict;
	if (tarpon_may_drop(header) && is_closed(entry->index, header)) {
		if (header->sender < TARPON_MAX_SENDERS)
			add_one(&tarpon_late, entry->index * TARPON_MAX_SENDERS + header->sender);
		return TARPON_VERDICT_CLOSED;
	}
	if (queue >= TARPON_MAX_QUEUES || !(entry->queues >> queue & 1))
		return TARPON_VERDICT_QUEUE;
	return TARPON_VERDICT_RING;
}

SEC("xdp.frags")
int tarpon_xdp(struct xdp_md *ctx)
{
	const enum tarpon_verdict verdict = judge(ctx);

	add_one(&tarpon_counts, verdict);
	if (verdict == TARPON_VERDICT_CLOSED)
		return XDP_DROP;
	if (verdict == TARPON_VERDICT_RING)
		return bpf_redirect_map(&tarpon_xsks, ctx->rx_queue_index, XDP_PASS);
	return XDP_PASS;
}

char tarpon_license[] SEC("license") = "Dual BSD/GPL";
