/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0
 *
 * Maps of the testbed's loss programs (loss.bpf.c), shared with user space.
 */
#ifndef TARPON_BPF_LOSS_H
#define TARPON_BPF_LOSS_H

#include <linux/types.h>

/* The programs number ports by interface index, without a lookup: this is the index of port 0. */
#define TARPON_LOSS_FIRST_IFINDEX 1000u
#define TARPON_LOSS_MAX_PORTS 256u

/* A token bucket. Bytes are those of whole frames, Ethernet header included. */
struct tarpon_loss_limit {
	__u64 bytes_per_second; /* 0: no limit */
	__u64 burst_bytes; /* at most 2^30 */
};

/* Array map "loss_config", one entry. A chance is compared with 32 hashed bits: 2^32 is certain. */
struct tarpon_loss_config {
	__u64 threshold; /* chance that a packet is lost by itself */
	__u64 seed;
	__u64 burst_start; /* chance that a packet outside a burst starts one */
	__u64 burst_end; /* chance that a packet in a burst ends it, and passes */
	struct tarpon_loss_limit flow; /* limit of each UDP flow */
};

/* Array map "loss_police", TARPON_LOSS_MAX_PORTS entries of struct tarpon_loss_limit. */

/* Array map "loss_ports", TARPON_LOSS_MAX_PORTS entries; IPv4 packets. */
struct tarpon_loss_port {
	__u64 packets; /* sent by the rank; gives the packet number that is hashed */
	__u64 passed;
	__u64 dropped; /* alone or in bursts */
	__u64 limited; /* dropped above their flow's limit */
	__u64 policed; /* dropped on their way to the rank, above the port's limit */
};

#endif
