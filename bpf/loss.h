/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0
 *
 * Maps of the testbed's loss program (loss.bpf.c), shared with user space.
 */
#ifndef TARPON_BPF_LOSS_H
#define TARPON_BPF_LOSS_H

#include <linux/types.h>

/* The program numbers ports by interface index, so that it needs no lookup: port 0 has this one. */
#define TARPON_LOSS_FIRST_IFINDEX 1000u
#define TARPON_LOSS_MAX_PORTS 256u

/* Array map "loss_config", one entry. */
struct tarpon_loss_config {
	__u64 threshold; /* a packet is lost when 32 hashed bits are below it: 2^32 loses all */
	__u64 seed;
};

/* Array map "loss_ports", TARPON_LOSS_MAX_PORTS entries. */
struct tarpon_loss_port {
	__u64 packets; /* IPv4 packets seen; the number that is hashed */
	__u64 passed;
	__u64 dropped;
};

#endif
