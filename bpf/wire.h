/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0
 *
 * The wire format of Tarpon, shared by the library (C++) and its BPF programs (C).
 * PROTOCOL.md describes the packets and walks through examples that a test reads back.
 *
 * One datagram = one header of 64 bytes + `length` bytes of payload, little-endian. With MTU 1500:
 * 1500 - 20 (IPv4) - 8 (UDP) - 64 = 1408 = 22 x 64 bytes of payload, so no element is ever torn.
 *
 * When a field or a type is added here, PROTOCOL.md, tarpon_check_header() and the names in
 * transport/counters.h follow.
 */
#ifndef TARPON_BPF_WIRE_H
#define TARPON_BPF_WIRE_H

#include <linux/types.h>

#ifdef __cplusplus
#include <cstddef>
#define TARPON_ASSERT(condition) static_assert(condition, #condition)
#else
#include <stddef.h>
#define TARPON_ASSERT(condition) _Static_assert(condition, #condition)
#endif

#define TARPON_MAGIC 0x5054u /* "TP" on the wire */
#define TARPON_WIRE_VERSION 2u
#define TARPON_HEADER_BYTES 64u
#define TARPON_MIN_PAYLOAD 448u /* the smallest slot of a job: fits every IPv4 path (576 bytes) */
#define TARPON_MAX_STAGES 4u
#define TARPON_MAX_FLOWS 8u /* source ports of one sender */
#define TARPON_SIGNATURE_BYTES 24u
#define TARPON_TERMS 3u
#define TARPON_TAG_BYTES 16u /* after the payload of keyed packets */

enum tarpon_type {
	TARPON_READY = 1,     /* an operation is open at the sender; payload: struct tarpon_ready */
	TARPON_DATA = 2,      /* slot `slot` of the message (operation, stage, sender -> receiver) */
	TARPON_CREDIT = 3,    /* slots [0, slot) of (operation, stage, receiver -> sender) may be sent */
	TARPON_REPAIR = 4,    /* as CREDIT, and the ranges in the payload are asked for again */
	TARPON_CLOSED = 5,    /* the sender has closed this operation: see closed_below */
	TARPON_HEARTBEAT = 6, /* the sender is alive; payload: how far it is, tag by tag */
	TARPON_ABORT = 7,     /* the sender gives this operation up; `slot` holds the reason */
	TARPON_PROBE = 8,     /* path probe; `stage`: enum tarpon_probe */
	TARPON_PROBE_REPLY = 9,
	TARPON_AGREEMENT = 10, /* report or verdict of a step; payload: transport/agreement_packet.h */
	TARPON_TYPE_END
};

/* PROBE and PROBE_REPLY: the kind, in `stage`. */
enum tarpon_probe {
	TARPON_PROBE_FULL = 0,  /* a full slot; its receiver answers */
	TARPON_PROBE_SMALL = 1, /* no payload; its receiver answers */
	TARPON_PROBE_BURST = 2, /* a full slot of a burst that is only counted */
	TARPON_PROBE_PATH = 3,  /* at connect: a payload of a size in question; only counted */
};

/* PROBE of the kind PATH with this value in `slot`: a full slot for all ranks, by multicast. */
#define TARPON_PROBE_TO_ALL 0xffffffffu

/* CREDIT with this value in `slot`: the whole message has arrived. */
#define TARPON_CREDIT_COMPLETE 0xffffffffu

/* READY with this value in `slot` is itself an answer: a rank that has closed the operation does
 * not answer it. */
#define TARPON_READY_ANSWER 0xffffffffu

/* Low bits of `incast_codec`: how many ranks may send to the packet's sender at once; 0: any
 * number. Bits above: what holds in the operation's epoch, also where this operation is not affected.
 * Coded: payloads are coefficients (codec/hadamard.h). Flat: no call goes through the memory of
 * hosts. */
#define TARPON_INCAST_MASK 0x0fu
#define TARPON_CODEC_SHIFT 4
#define TARPON_FORM_CODED 1u
#define TARPON_FORM_FLAT 2u

/* Low bits of `stage`: the stage itself. In DATA, bits above: log2 of the number of flows that its
 * message travels in. */
#define TARPON_STAGE_MASK 0x0fu
#define TARPON_FLOWS_SHIFT 4

/* ABORT: the reason, in `slot`. A receiver refuses other values. */
enum tarpon_abort_reason {
	TARPON_ABORT_GIVEN_UP = 0,  /* by its caller */
	TARPON_ABORT_MISMATCH = 1,  /* another rank ran a different operation under this number */
	TARPON_ABORT_EXPIRED = 2,   /* its deadline passed before it could begin */
	TARPON_ABORT_LATE = 3,      /* it reached its deadline; `contributors`: the ranks it lacked */
	TARPON_ABORT_ARGUMENT = 4,  /* a rank refused it: its arguments make no sense */
	TARPON_ABORT_DEADLINE = 5,  /* a rank refused it: its deadline had passed at the call */
	TARPON_ABORT_MEMORY = 6,    /* a rank refused it: no memory for its buffers */
	TARPON_ABORT_EXCEPTION = 7, /* a rank refused it: an exception inside */
	TARPON_ABORT_FORGOTTEN = 8, /* a rank no longer remembers the numbers of its tag */
	TARPON_ABORT_END
};

enum tarpon_flag {
	TARPON_FLAG_TAIL = 1 << 0,      /* among the last 1 % of the message's slots */
	TARPON_FLAG_REPAIR = 1 << 1,    /* an answer to REPAIR: not a first transmission */
	TARPON_FLAG_NONFINITE = 1 << 2, /* an input of the operation holds NaN or infinity */
	TARPON_FLAG_VOID = 1 << 3,      /* this shard has no owner in this operation */
	TARPON_FLAG_RESERVED = 0xc0
};

/* What protects the payload: a setting of the job. Bits 4 and 5 of `flags` have it. */
enum tarpon_integrity {
	TARPON_INTEGRITY_NONE = 0,   /* benchmarks only */
	TARPON_INTEGRITY_UDP = 1,    /* the kernel's UDP checksum */
	TARPON_INTEGRITY_CRC32C = 2, /* `check` over header and payload */
	TARPON_INTEGRITY_KEYED = 3,  /* a tag after the payload, TARPON_TAG_BYTES; `check`: its number */
	TARPON_INTEGRITY_SEALED = 4, /* the setting alone; on the wire KEYED: payloads are encrypted */
};
#define TARPON_INTEGRITY_SHIFT 4
#define TARPON_INTEGRITY_MASK 0x30

struct tarpon_header {
	__u16 magic;
	__u8 version;
	__u8 type;           /* enum tarpon_type */
	__u32 job;           /* cookie of the job, chosen at rendezvous */
	__u16 sender;        /* rank */
	__u16 communicator;
	__u32 tag;           /* the caller's; operations are numbered per (communicator, tag) */
	__u32 operation;
	__u32 slot;          /* DATA: index in the message; CREDIT and REPAIR: the grant */
	__u8 stage;          /* < TARPON_MAX_STAGES, flows: see TARPON_STAGE_MASK */
	__u8 flags;          /* enum tarpon_flag, integrity */
	__u16 length;        /* bytes of payload */
	__u16 signature;     /* hash of the operation's signature: see struct tarpon_ready */
	__u16 epoch;         /* of the job's agreed settings */
	__u64 contributors;  /* DATA: bit r set when this slot contains rank r's data */
	__u16 closed_below;  /* low 16 bits of the sender's lowest open operation of this tag */
	__u16 stage_time;    /* the sender's sample of t_C (RELIABILITY.md), in 16 us; 0: none */
	__u32 packet_number; /* per sender, counts every packet sent */
	__u32 sent_us;       /* sender's monotonic clock */
	__u32 echo_us;       /* latest sent_us heard from the receiver plus the time held; 0: none */
	__u8 incast_codec;   /* low 4 bits: advertised incast; high 4 bits: form of the epoch */
	__u8 incarnation;    /* of the sender */
	__u16 stride;        /* of the codec: elements per coefficient group; 0 without codec */
	__u32 check;         /* CRC32C of header (this field zero) and payload; keyed: its number; or 0 */
};

TARPON_ASSERT(sizeof(struct tarpon_header) == TARPON_HEADER_BYTES);
TARPON_ASSERT(offsetof(struct tarpon_header, job) == 4);
TARPON_ASSERT(offsetof(struct tarpon_header, sender) == 8);
TARPON_ASSERT(offsetof(struct tarpon_header, communicator) == 10);
TARPON_ASSERT(offsetof(struct tarpon_header, tag) == 12);
TARPON_ASSERT(offsetof(struct tarpon_header, operation) == 16);
TARPON_ASSERT(offsetof(struct tarpon_header, slot) == 20);
TARPON_ASSERT(offsetof(struct tarpon_header, stage) == 24);
TARPON_ASSERT(offsetof(struct tarpon_header, flags) == 25);
TARPON_ASSERT(offsetof(struct tarpon_header, length) == 26);
TARPON_ASSERT(offsetof(struct tarpon_header, signature) == 28);
TARPON_ASSERT(offsetof(struct tarpon_header, epoch) == 30);
TARPON_ASSERT(offsetof(struct tarpon_header, contributors) == 32);
TARPON_ASSERT(offsetof(struct tarpon_header, closed_below) == 40);
TARPON_ASSERT(offsetof(struct tarpon_header, stage_time) == 42);
TARPON_ASSERT(offsetof(struct tarpon_header, packet_number) == 44);
TARPON_ASSERT(offsetof(struct tarpon_header, sent_us) == 48);
TARPON_ASSERT(offsetof(struct tarpon_header, echo_us) == 52);
TARPON_ASSERT(offsetof(struct tarpon_header, incast_codec) == 56);
TARPON_ASSERT(offsetof(struct tarpon_header, incarnation) == 57);
TARPON_ASSERT(offsetof(struct tarpon_header, stride) == 58);
TARPON_ASSERT(offsetof(struct tarpon_header, check) == 60);

/* Payload of READY. The signature must be equal on all ranks; the transport compares it byte by
 * byte and does not interpret it (collectives/engine/call/signature.h does). */
struct tarpon_ready {
	__u8 signature[TARPON_SIGNATURE_BYTES];
	__u32 grant[TARPON_MAX_STAGES]; /* as CREDIT, for each stage */
	__u32 age_us; /* at the sender, from the start of the call to the start of its operation */
	/* bounded: bound and gather time in us, last loss in millionths; all_to_all with counts:
	 * elements to the receiver, elements from it, 1; else 0 */
	__u32 terms[TARPON_TERMS];
};
TARPON_ASSERT(sizeof(struct tarpon_ready) == 56);

/* HEARTBEAT: its kind, in `slot`. */
enum tarpon_heartbeat {
	TARPON_HEARTBEAT_NEWS = 0,     /* how far the sender is */
	TARPON_HEARTBEAT_QUESTION = 1, /* the same, and it asks how far the receiver is */
	TARPON_HEARTBEAT_ANSWER = 2,   /* the same, for the tags in a question */
	TARPON_HEARTBEAT_END
};

/* Payload of HEARTBEAT: length / 8 of these, at most TARPON_MAX_PASSED. */
struct tarpon_passed {
	__u32 tag;
	__u32 closed_below; /* the sender's lowest open operation of this tag, or its next one */
};
TARPON_ASSERT(sizeof(struct tarpon_passed) == 8);
#define TARPON_MAX_PASSED 64u

/* Payload of REPAIR: length / 8 of these. */
struct tarpon_range {
	__u32 first; /* slot */
	__u32 count; /* slots */
};
TARPON_ASSERT(sizeof(struct tarpon_range) == 8);

static inline __u32 tarpon_stage(const struct tarpon_header *header)
{
	return header->stage & TARPON_STAGE_MASK;
}

/* Returns in how many flows the message of this DATA packet travels. */
static inline __u32 tarpon_flows(const struct tarpon_header *header)
{
	return 1u << (header->stage >> TARPON_FLOWS_SHIFT);
}

static inline int tarpon_stage_is_valid(const struct tarpon_header *header)
{
	if (header->type != TARPON_DATA)
		return header->stage < TARPON_MAX_STAGES;
	return tarpon_stage(header) < TARPON_MAX_STAGES &&
	       tarpon_flows(header) <= TARPON_MAX_FLOWS;
}

/* Why a header is refused, in the order of the checks; 0 = acceptable. */
enum tarpon_header_verdict {
	TARPON_HEADER_OK = 0,
	TARPON_HEADER_MAGIC,
	TARPON_HEADER_VERSION,
	TARPON_HEADER_JOB,
	TARPON_HEADER_TYPE,
	TARPON_HEADER_FIELDS, /* reserved bits; stage, flows or length out of range */
};

static inline __u32 tarpon_integrity_of(const struct tarpon_header *header)
{
	return (header->flags & TARPON_INTEGRITY_MASK) >> TARPON_INTEGRITY_SHIFT;
}

/* Returns the bytes of the packet after its payload. */
static inline __u32 tarpon_tag_bytes(const struct tarpon_header *header)
{
	return tarpon_integrity_of(header) == TARPON_INTEGRITY_KEYED ? TARPON_TAG_BYTES : 0;
}

/* Does the checks that need no state but the job's cookie. `datagram_bytes` is the length of the
 * datagram after the header, its tag included. REQUIRES: 64 readable bytes at `header`. */
static inline enum tarpon_header_verdict tarpon_check_header(const struct tarpon_header *header,
							     __u32 job, __u32 datagram_bytes)
{

	if (header->magic != TARPON_MAGIC)
		return TARPON_HEADER_MAGIC;
	if (header->version != TARPON_WIRE_VERSION)
		return TARPON_HEADER_VERSION;
	if (header->job != job)
		return TARPON_HEADER_JOB;
	if (header->type < TARPON_READY || header->type >= TARPON_TYPE_END)
		return TARPON_HEADER_TYPE;
	if ((header->flags & TARPON_FLAG_RESERVED) || !tarpon_stage_is_valid(header) ||
	    header->length + tarpon_tag_bytes(header) != datagram_bytes)
		return TARPON_HEADER_FIELDS;
	return TARPON_HEADER_OK;
}

#endif
