/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
 *
 * Somebody else's XDP program, for tests of how ours gets on with it: counts the packets that it sees
 * and lets them pass.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} stranger_count SEC(".maps");

SEC("xdp")
int stranger(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&stranger_count, &zero);

	(void)ctx;
	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}

char stranger_license[] SEC("license") = "Dual BSD/GPL";
