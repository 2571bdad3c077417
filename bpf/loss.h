/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0
 *
 * Maps of the testbed's loss programs (loss.bpf.c), shared with user space.
 */
#ifndef TARPON_BPF_LOSS_H
#define TARPON_BPF_LOSS_H

#include <linux/types.h>

/* The programs number ports by interface index and need no lookup: port 0 has this one. */
#define TARPON_LOSS_FIRST_IFINDEX 1000u
#define TARPON_LOSS_MAX_PORTS 256u

/* A token bucket. Bytes are those of whole frames, Ethernet header included. */
struct tarpon_loss_limit {
	__u64 bytes_per_second; /* 0: no limit */
	__u64 burst_bytes; /* 2^30 at most */
};

/* Array map "loss_config", one entry. A chance is compared with 32 hashed bits: 2^32 is certain. */
struct tarpon_loss_config {
	__u64 threshold; /* chance of each packet to be lost by itself */
	__u64 seed;
	__u64 burst_start; /* chance of each packet outside a burst to start one */
	__u64 burst_end; /* chance of each packet in a burst to end it, and to pass */
	struct tarpon_loss_limit flow; /* of each UDP flow */
};

/* Array map "loss_police", TARPON_LOSS_MAX_PORTS entries of struct tarpon_loss_limit. */

/* Array map "loss_ports", TARPON_LOSS_MAX_PORTS entries; IPv4 packets. */
struct tarpon_loss_port {
	__u64 packets; /* that the rank sent; the number that is hashed */
	__u64 passed;
	__u64 dropped; /* alone or in bursts */
	__u64 limited; /* above their flow's limit */
	__u64 policed; /* on their way to the rank, above the port's limit */
};

#endif
