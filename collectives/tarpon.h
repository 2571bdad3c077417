/* The C interface of Tarpon: AllReduce and other collectives among the ranks of a job. C99 and C++.
 *
 *   tarpon_communicator* job;
 *   tarpon_arguments call = {.size = sizeof call};
 *   if (tarpon_connect_from_environment(NULL, &job) != TARPON_OK) return fail(tarpon_error_text());
 *   call.input = call.output = gradients;
 *   call.count = n;
 *   call.function = TARPON_AVG;
 *   call.deadline_us = 10 * 1000000;
 *   if (tarpon_allreduce(job, &call, NULL) != TARPON_OK) return fail(tarpon_error_text());
 *   tarpon_close(job, 10 * 1000000);
 *   tarpon_communicator_free(job);
 *
 * Include <tarpon/tarpon.h> and link libtarpon.so: pkg-config tarpon-shared, or the CMake target
 * tarpon::tarpon_shared.
 *
 * RETURN VALUES. A function that returns int returns TARPON_OK (0) or another value of
 * tarpon_error. tarpon_error_text() then says in one line what failed and what to do. A failing
 * call leaves the objects behind its output pointers as they are.
 *
 * STRUCTS begin with their size, so that later versions can add members at the end. Set `size` to
 * sizeof of the struct and all members that you do not need to 0: 0 means the default. A smaller
 * struct, of a program that was built with an older header, is accepted: members that it lacks have
 * their default. In a larger struct, of a program that was built with a newer header, the bytes
 * that this library does not know must be 0. A function that fills a struct leaves bytes beyond
 * `size` alone, and sets bytes that it does not know to 0. A size is a multiple of 8.
 *
 * HANDLES (tarpon_communicator, tarpon_call, tarpon_report) are opaque. The function that makes one
 * gives it to the caller, who frees it once, with the function named after it. NULL may be freed.
 * Strings that a function returns belong to the library; strings that a caller gives are copied.
 *
 * CONCURRENCY. Any thread may use a communicator, several at the same time. Calls of one tag match
 * across ranks in the order in which they were made, so one thread at a time should use a tag.
 * While a handle is freed, no other thread may use it. A handle belongs to the process that made
 * it: in a child that fork() made, each function of a communicator or a call fails at once with
 * TARPON_ERROR_UNAVAILABLE, and freeing leaks. The child may connect by itself, as a rank of
 * another job.
 *
 * REFUSED CALLS. A call of AllReduce that this rank cannot run (wrong arguments, a deadline that
 * has passed, no memory, tarpon_arguments.refusal) takes its number within the tag all the same,
 * and ends as aborted on every rank, so that later calls of the tag match as before. That holds for
 * every call with a valid communicator whose tag can be read: `arguments` is not NULL and its
 * `size` makes sense.
 *
 * REPEATED RUNS. Sums, averages and products of floats depend on the order of addition in their
 * last bits. In exact mode that order follows from the number of ranks, the count, the type, the
 * algorithm, the shares, whether the ranks share memory (tarpon_hosts()), and the number of the
 * call within its tag, by which the work rotates among the ranks. So a run that makes the same
 * calls, with its ranks placed alike, has the same bits. With tarpon_options.fixed_order, or
 * TARPON_ORDER=fixed, nothing rotates: equal inputs give equal bits in every call and every such
 * run, also in one that begins at a checkpoint. Integers, minima and maxima have the same bits in
 * any order. Not repeatable are bounded calls, which add what arrives, and calls with learn_shares,
 * whose shares follow measurements.
 *
 * LARGE JOBS. A job of more than 64 ranks spans up to 64 hosts with up to 64 ranks each, as many on
 * each host, and ranks of a host share memory. It has AllReduce, barriers, tarpon_resync(),
 * tarpon_agree() and tarpon_abort(). The rest is refused by name. A mask has a bit for each host
 * there (tarpon_mask_bit()); tarpon_report_ranks() has the ranks. What a report lacks, it lacks in
 * the slice of the bucket that this rank's place in its host adds up; tarpon_agree() gives one
 * verdict for all. Tags are below 0x6ffffffe. A call without a result is the last one of its tag.
 *
 * TIME is given in microseconds. No exception leaves a function.
 */
#pragma once

/* NOLINTBEGIN(modernize-deprecated-headers, modernize-use-using): this is C, too */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the shared library exports: these functions and nothing else. */
#define TARPON_API __attribute__((visibility("default")))

/* A rank's place in a job. Freed by tarpon_communicator_free(). */
typedef struct tarpon_communicator tarpon_communicator;

/* A call that was started. Freed by tarpon_call_free(). */
typedef struct tarpon_call tarpon_call;

/* Where the ranks of a job meet, before they have connected. Freed by tarpon_listener_free(). */
typedef struct tarpon_listener tarpon_listener;

/* What one call's result is made of. Immutable; any thread may read it. Freed by
 * tarpon_report_free(). */
typedef struct tarpon_report tarpon_report;

/* ---- numbers. They never change. */

typedef enum tarpon_error {
  TARPON_OK = 0,
  TARPON_ERROR_INVALID_ARGUMENT = 1, /* the caller asked for something impossible */
  TARPON_ERROR_MISMATCH = 2,         /* the ranks do not agree */
  TARPON_ERROR_TIMEOUT = 3,          /* a deadline passed; the text names the ranks */
  TARPON_ERROR_PERMISSION = 4,       /* the remedy needs privileges */
  TARPON_ERROR_UNAVAILABLE = 5,      /* a kernel feature, a device or a rank is missing */
  TARPON_ERROR_IO = 6,               /* a system call failed */
  TARPON_ERROR_NO_MEMORY = 7,
  TARPON_ERROR_NO_RESULT =
      8, /* the call ended, and its output is undefined: tarpon_status says how */
  TARPON_ERROR_INTERNAL = 9 /* a defect of Tarpon */
} tarpon_error;

/* Element types. Sums, averages and products of the half types are computed in float32 and rounded
 * once per result. Integers compute modulo 2^bits; averages of theirs truncate toward zero. */
typedef enum tarpon_data_type {
  TARPON_FLOAT32 = 0,
  TARPON_FLOAT64 = 1,
  TARPON_INT32 = 2,
  TARPON_INT64 = 3,
  TARPON_FLOAT16 = 4,  /* IEEE binary16 */
  TARPON_BFLOAT16 = 5, /* the upper half of a float32 */
  TARPON_INT8 = 6,
  TARPON_UINT8 = 7,
  TARPON_INT16 = 8,
  TARPON_UINT16 = 9,
  TARPON_UINT32 = 10,
  TARPON_UINT64 = 11
} tarpon_data_type;

/* Functions. MIN and MAX of floats are NaN where a contribution is NaN, always with the same bits,
 * and -0 is below +0. */
typedef enum tarpon_function {
  TARPON_SUM = 0,
  TARPON_AVG = 1,
  TARPON_MIN = 2,
  TARPON_MAX = 3,
  TARPON_PROD = 4,
  TARPON_BAND = 5, /* integers only, like BOR and BXOR */
  TARPON_BOR = 6,
  TARPON_BXOR = 7,
  TARPON_CUSTOM = 8 /* tarpon_arguments.custom_combine; exact mode */
} tarpon_function;

typedef enum tarpon_mode {
  TARPON_EXACT = 0,  /* lost data is repaired until the result is complete; the same bits on all
                        ranks. See REPEATED RUNS */
  TARPON_BOUNDED = 1 /* ends by its bound with the data that has arrived, so that ranks may get
                        different results; float sums and averages. Other types and functions run
                        exact: `mode` of tarpon_summary says what ran */
} tarpon_mode;

/* How a call is made. A bounded call runs TARPON_HOSTS, if that is given or is the default, the
 * bound is learnt, the tag is below 16, and the call is not coded. Other bounded calls run
 * TARPON_TAR. */
typedef enum tarpon_algorithm {
  TARPON_ALGORITHM_DEFAULT = 0, /* TARPON_HOSTS where ranks share a host; else TARPON_ONE_SHOT
                                   for a few KiB, TARPON_TAR for more */
  TARPON_TAR = 1,               /* every rank adds up a shard and sends it to all */
  TARPON_CIRCULANT = 2,         /* few messages: a rank sends to log2 of the ranks, twice */
  TARPON_ONE_SHOT = 3,          /* all to all, for a few KiB */
  TARPON_RING = 4,
  TARPON_RECURSIVE_DOUBLING = 5,
  TARPON_2D_TAR = 6,    /* TAR in groups of tarpon_arguments.group_size ranks, and between them */
  TARPON_LATE_RANK = 7, /* StragglAR: the others add up while tarpon_arguments.late_rank is awaited;
                           2, 4, 8, ... ranks */
  TARPON_HOSTS = 8      /* in each host through its memory, then over the hosts */
} tarpon_algorithm;

/* What a bounded call writes where the reduced value is missing. */
typedef enum tarpon_missing {
  TARPON_MISSING_ZERO = 0,
  TARPON_MISSING_LOCAL = 1 /* this rank's own contribution, scaled */
} tarpon_missing;

typedef enum tarpon_datapath {
  TARPON_DATAPATH_AUTO = 0,
  TARPON_DATAPATH_XDP = 1,
  TARPON_DATAPATH_URING = 2,
  TARPON_DATAPATH_MMSG = 3
} tarpon_datapath;

/* Whether bounded calls of float32 send coefficients, so that losses cost all elements alike. */
typedef enum tarpon_codec {
  TARPON_CODEC_AUTO = 0, /* depends on the loss */
  TARPON_CODEC_ON = 1,
  TARPON_CODEC_OFF = 2
} tarpon_codec;

/* How a call ended. The output is defined after the first three. */
typedef enum tarpon_status {
  TARPON_STATUS_COMPLETE = 0,  /* every contribution is in */
  TARPON_STATUS_PARTIAL = 1,   /* bounded: the report says what is missing */
  TARPON_STATUS_LATE_SELF = 2, /* bounded: this rank came late, and fetched the result */
  TARPON_STATUS_PEER_LATE = 3, /* the deadline passed without the late ranks */
  TARPON_STATUS_MISMATCH = 4,  /* the blamed ranks run another operation */
  TARPON_STATUS_ABORTED = 5,   /* the blamed ranks gave the call up: abort_cause */
  TARPON_STATUS_FAILED = 6,    /* the network port broke */
  TARPON_STATUS_PEER_DEAD = 7, /* exact: the blamed ranks are dead; tarpon_shrink() */
  TARPON_STATUS_EVICTED = 8,   /* the blamed ranks are out of this communicator; tarpon_rejoin() */
  TARPON_STATUS_PEER_LEFT = 9  /* exact: the blamed ranks left the communicator */
} tarpon_status;

/* Why a call was aborted. */
typedef enum tarpon_abort_cause {
  TARPON_CAUSE_GIVEN_UP = 0, /* tarpon_abort(), tarpon_shrink(), tarpon_rejoin(), or freed */
  TARPON_CAUSE_MISMATCH = 1,
  TARPON_CAUSE_EXPIRED = 2, /* the deadline passed before the call could begin */
  TARPON_CAUSE_LATE = 3,    /* the other ranks ended it at their deadline */
  TARPON_CAUSE_ARGUMENT = 4,
  TARPON_CAUSE_DEADLINE = 5,
  TARPON_CAUSE_MEMORY = 6,
  TARPON_CAUSE_EXCEPTION = 7,
  TARPON_CAUSE_TAG_FORGOTTEN = 8
} tarpon_abort_cause;

/* How far a call had come when it ended. */
typedef enum tarpon_call_stage {
  TARPON_CALL_QUEUED = 0,
  TARPON_CALL_SCATTER = 1,
  TARPON_CALL_GATHER = 2,
  TARPON_CALL_RESULT = 3
} tarpon_call_stage;

/* The lists of ranks in a report: the members of tarpon_summary that are masks. */
typedef enum tarpon_rank_list {
  TARPON_LATE_RANKS = 0,
  TARPON_BLAMED = 1,
  TARPON_VOID_SHARDS = 2,
  TARPON_NONFINITE_RANKS = 3 /* empty in a large job */
} tarpon_rank_list;

/* What becomes of a training step. */
typedef enum tarpon_step {
  TARPON_STEP_APPLY = 0,
  TARPON_STEP_SKIP = 1, /* on no rank: too much was lost, or an input was not finite */
  TARPON_STEP_HALT = 2  /* the job should stop: most was lost in three steps in a row */
} tarpon_step;

/* ---- structs */

/* How a rank joins a job. Members that are 0 or NULL have the default. */
typedef struct tarpon_options {
  size_t size;            /* sizeof(tarpon_options) */
  uint32_t rank;          /* 0 .. world_size - 1 */
  uint32_t world_size;    /* 1 .. 64; up to 4096 on hosts of equal size: see LARGE JOBS */
  const char* rendezvous; /* "HOST:PORT" or "tcp://HOST:PORT" of rank 0, or "file://PATH" */
  /* The interface that carries the job, an IPv4 address of it, and its MTU in bytes. Default: the
   * interface that reaches the rendezvous. Packets leave by an interface that is named here,
   * whatever the kernel's routes say, if it has a route to every rank. Control connections take the
   * kernel's routes. */
  const char* interface;
  const char* address;
  uint32_t mtu;
  uint32_t datapath;  /* tarpon_datapath */
  double loss_target; /* mean share that bounded calls may lose (0.001); alike on all ranks */
  const char* flight_directory; /* where failed calls leave dumps (none) */
  /* 30 s; from the environment: as TARPON_RENDEZVOUS_TIMEOUT says, else 5 min where a launcher has
   * started ranks on several hosts. */
  int64_t rendezvous_timeout_us;
  int64_t dead_after_us; /* silence, while needed, after which a rank is dead (5 s); alike on all */
  uint64_t retain_bytes; /* memory of results that are kept for late ranks (64 MiB) */
  double max_bytes_per_second; /* cap of what this rank sends (none) */
  uint32_t flows;              /* UDP flows to each rank: 1, 2, 4 or 8 (by trial) */
  uint32_t no_status_socket;   /* 1: this rank does not answer `tarpon status` */
  /* Rank 0, in place of `rendezvous`: the listener that it has opened already. It serves one
   * connect, and belongs to the caller, who frees it after tarpon_connect(). */
  tarpon_listener* listener;
  uint32_t codec; /* tarpon_codec, alike on all ranks */
  /* 1: results leave by IP multicast, where it carries. 0: they do not, or as TARPON_MULTICAST says
   * where the environment is read. Alike on all ranks. */
  uint32_t multicast;
  /* Budgets of tarpon_agree(), alike on all ranks: above 0, up to 1. A step is skipped if the
   * network lost more than skip_above of it at the worst rank (5 %, or 20 times the loss target if
   * that is more); the third step in a row above halt_above ends the job (50 %). */
  double skip_above;
  double halt_above;
  const char* ports; /* "29600-29699": ports of all sockets that others reach (the kernel's) */
  /* 1: exact calls with equal inputs have equal bits, whatever their numbers, and calls with
   * learn_shares are refused. 0: the work rotates among the ranks from call to call, or as
   * TARPON_ORDER says where the environment is read. Alike on all ranks. */
  uint32_t fixed_order;
  /* 1: ranks of a host use the network among themselves. 0: calls add up in each host first,
   * through memory that its ranks share, or as TARPON_HOSTS says where the environment is read.
   * Alike on all ranks. */
  uint32_t no_shared_memory;
  /* Silence after which a rank is left out of bounded calls until it is heard again (300 ms); 10 ms
   * or more; alike on all. Below 50 ms a busy machine looks silent. */
  int64_t silent_after_us;
  /* Threads that work for the datapath of this rank, 1 to 4: the driver, and threads that send
   * large messages for it; AF_XDP has 1. 0: by the processors that this process may use, or as
   * TARPON_LANES says where the environment is read. */
  uint32_t lanes;
  uint32_t encrypt; /* 1: payloads are encrypted too; alike on all ranks, with a secret */
  /* A file with the secret of the job, the same on all ranks (none): 32 bytes or more that no other
   * user may read. Connections between ranks are TLS 1.3 then, and packets carry tags that no
   * process without the secret can make. */
  const char* secret_file;
} tarpon_options;

/* A reduction of the caller's own: out[i] = a[i] op b[i] for all elements. It has to be associative
 * and commutative. `out` may equal `a`; pointers need no alignment. It runs on the thread that
 * drives the communicator: it must be quick, throw nothing, and call no function of this interface.
 */
typedef void (*tarpon_combine)(void* out, const void* a, const void* b, size_t elements,
                               void* context);

/* Tags from here on belong to the library. */
#define TARPON_RESERVED_TAGS 0xe0000000u

/* Tags of messages are below this. */
#define TARPON_MESSAGE_TAGS 0x10000u

/* Bits of tarpon_arguments.flags. */
typedef enum tarpon_call_flag {
  TARPON_FOLLOW = 1 /* bounded: this rank contributes nothing, and takes the result that the others
                       have. For a rank that is behind (tarpon_behind()) and is not to compute its
                       inputs: `input` is ignored and may be NULL, missing data counts as zero */
} tarpon_call_flag;

/* What a caller asks of an AllReduce. */
typedef struct tarpon_arguments {
  size_t size;        /* sizeof(tarpon_arguments) */
  const void* input;  /* `count` elements; unchanged unless it is the output as well */
  void* output;       /* `count` elements; equal to `input`, or apart from it */
  uint64_t count;     /* 0: a call without data; in exact mode it still waits for all ranks */
  uint32_t type;      /* tarpon_data_type; alike on all ranks, as are function, mode and
                         algorithm */
  uint32_t function;  /* tarpon_function */
  uint32_t tag;       /* calls of one tag match in order; below TARPON_RESERVED_TAGS */
  uint32_t mode;      /* tarpon_mode */
  uint32_t algorithm; /* tarpon_algorithm */
  uint32_t missing;   /* tarpon_missing */
  int64_t
      deadline_us;  /* hard limit of the call. It has no default: 0 is a deadline that has passed */
  int64_t bound_us; /* bounded: time of the whole call; 0: learnt from earlier calls */
  uint32_t custom_id;            /* TARPON_CUSTOM: names the function; alike on all ranks */
  uint32_t group_size;           /* TARPON_2D_TAR: divides the number of ranks; alike on all ranks.
                                    0: its largest divisor that is not above its root */
  tarpon_combine custom_combine; /* TARPON_CUSTOM: the function */
  void* custom_context;  /* its last argument; stays the caller's until the call has ended */
  const double* shares;  /* for TARPON_TAR and bounded calls; coded ones ignore it. A weight for
                            each rank: how much of the bucket it owns relative to the others. Alike
                            on all ranks. Read only while the call is started. NULL: even */
  uint32_t share_count;  /* length of `shares`: the number of ranks */
  uint32_t late_rank;    /* TARPON_LATE_RANK: the rank that comes late; alike on all ranks */
  uint32_t learn_shares; /* 1: for exact calls by TARPON_TAR without `shares`, of 1 MiB or more, of
                            tags below 64: shares follow the measured speed of the links, and how
                            late ranks begin. Alike on all ranks: a call that learns on some of them
                            only ends as TARPON_STATUS_MISMATCH. TARPON_SHARES=auto sets it for all
                            calls of a communicator of tarpon_connect_from_environment(). The bits
                            of results then differ from run to run */
  uint32_t flags;        /* tarpon_call_flag, or 0 */
  const char* refusal; /* NULL or "": the call runs. Else why the caller cannot run it, for example
                          because it has no memory for a copy: see REFUSED CALLS. The report of this
                          rank has the text. Buffers are not touched */
} tarpon_arguments;

/* What a collective does: who needs which buffer. A part belongs to a rank; parts lie one after
 * another, in the order of ranks. */
typedef enum tarpon_collective_kind {
  TARPON_REDUCE_SCATTER = 1, /* input: all parts; output: this rank's part of the reduction */
  TARPON_ALL_GATHER = 2,     /* input: this rank's part; output: all parts */
  TARPON_BROADCAST = 3,      /* input: `count` elements, at the root; output: these */
  TARPON_REDUCE = 4,         /* input: `count` elements; output: at the root, their reduction */
  TARPON_GATHER = 5,         /* input: this rank's part; output: at the root, all parts */
  TARPON_SCATTER = 6,        /* input: at the root, all parts; output: this rank's part */
  TARPON_ALL_TO_ALL = 7      /* input: a part for each rank; output: one from each rank */
} tarpon_collective_kind;

/* What a caller asks of another collective than AllReduce. All but the buffers is alike on all
 * ranks; of ALL_TO_ALL the counts differ, too. In place: the smaller buffer begins where this
 * rank's part of the larger one does, or both are one. */
typedef struct tarpon_collective_arguments {
  size_t size;            /* sizeof(tarpon_collective_arguments) */
  const void* input;      /* unchanged unless it is the output as well; may be NULL where unused */
  void* output;           /* may be NULL where unused */
  uint64_t count;         /* elements of each part; 0 with `counts` */
  const uint64_t* counts; /* elements of the part of each rank, as many as there are ranks; NULL:
                             `count` each. ALL_TO_ALL: of the part for each rank. Read only while
                             the call is started */
  uint32_t collective;    /* tarpon_collective_kind */
  uint32_t root;          /* of BROADCAST, REDUCE, GATHER and SCATTER; else 0 */
  uint32_t type;          /* tarpon_data_type */
  uint32_t function;      /* tarpon_function, of REDUCE_SCATTER and REDUCE */
  uint32_t tag;           /* calls of one tag match in order, AllReduces too */
  uint32_t custom_id;     /* TARPON_CUSTOM: names the function */
  int64_t deadline_us;    /* hard limit of the call. It has no default */
  tarpon_combine custom_combine; /* TARPON_CUSTOM: the function */
  void* custom_context;          /* its last argument; the caller's until the call has ended */
  const char* refusal;           /* as that of tarpon_arguments */
  const uint64_t* output_counts; /* ALL_TO_ALL with `counts`: elements of the part from each rank;
                                    else NULL. In place only where they equal `counts` */
  uint32_t mode;                 /* tarpon_mode. TARPON_BOUNDED: REDUCE_SCATTER, of sums and
                                    averages of floats; the report says what this rank's part
                                    lacks. ALL_GATHER: missing elements of the output stay as
                                    they are, and the report lists them */
  uint32_t reserved;             /* 0 */
  int64_t bound_us;              /* bounded: as that of tarpon_arguments */
} tarpon_collective_arguments;

/* What one rank sends to another. */
typedef struct tarpon_message {
  size_t size;         /* sizeof(tarpon_message) */
  void* data;          /* `bytes` bytes, which tarpon_send() only reads; may be NULL for 0 bytes */
  uint64_t bytes;      /* alike at both ranks, else the call ends as MISMATCH */
  uint32_t peer;       /* the other rank */
  uint32_t tag;        /* below TARPON_MESSAGE_TAGS */
  int64_t deadline_us; /* hard limit of the call. It has no default */
  const char* refusal; /* as that of tarpon_arguments */
} tarpon_message;

/* A report in numbers. Masks have bit r set for rank r; of a large job, tarpon_mask_bit(). */
typedef struct tarpon_summary {
  size_t size;     /* sizeof(tarpon_summary) */
  uint32_t status; /* tarpon_status */
  uint32_t tag;
  uint32_t operation;   /* number of the call within its tag */
  uint32_t stage;       /* tarpon_call_stage */
  uint32_t mode;        /* tarpon_mode that ran */
  uint32_t abort_cause; /* tarpon_abort_cause, of aborted calls */
  int64_t elapsed_us;   /* from the call to its end */
  int64_t bound_us;     /* bounded: what the ranks agreed on */
  uint64_t bytes_sent;  /* payload, each byte once */
  uint64_t bytes_received;
  uint64_t bytes_fetched;     /* late_self */
  double lost_fraction;       /* 1 - contributions present / (ranks x count) */
  double lost_stage1;         /* part of it: never reached the owner */
  double lost_stage2;         /* part of it: the reduced value did not reach this rank */
  uint64_t late_ranks;        /* mask: nothing of them is in the result; late_self: itself */
  uint64_t blamed;            /* mask: mismatch, aborted, peer_dead, peer_left, evicted */
  uint64_t void_shards;       /* mask: owners from whose shard nothing came */
  uint64_t nonfinite_ranks;   /* mask: their input held NaN or infinity */
  uint32_t nonfinite;         /* 1: an input held one, and every element of the result is NaN */
  uint32_t epoch;             /* bounded: number of the job's agreed settings */
  uint32_t first_missed;      /* evicted, at that rank: the first operation that it misses, */
  uint32_t operations_missed; /* and how many */
  double lost_in_network;     /* part of lost_fraction: without late ranks and void shards */
  int64_t held_us;            /* bounded: the call waited so much longer than `bound_us` for live
                                 ranks; 0: it ended by its bound */
} tarpon_summary;

/* What one rank tells the others of a step: the worst of its calls. */
typedef struct tarpon_loss {
  size_t size;          /* sizeof(tarpon_loss) */
  double lost_fraction; /* lost_in_network of tarpon_summary; 1 without a result */
  uint32_t nonfinite;   /* 1: an input held NaN or infinity */
  uint32_t reserved;    /* 0 */
  uint64_t late_ranks;  /* mask: they were late for a call, and are not waited for */
  uint64_t digest;      /* of data that is to be alike on all ranks, such as the model; 0: none */
} tarpon_loss;

/* What becomes of a step, alike on all ranks that get a verdict. */
typedef struct tarpon_step_verdict {
  size_t size; /* sizeof(tarpon_step_verdict) */
  uint64_t step;
  uint32_t verdict;     /* tarpon_step */
  uint32_t decided_by;  /* the rank that decided */
  double lost_fraction; /* the worst of the reports that were heard */
  uint64_t reporters;   /* mask: their reports were heard; 0: halted without a verdict */
  uint64_t rejoin;      /* mask: these ranks wait in tarpon_rejoin() */
  char detail[256];     /* one line for a person; empty for apply */
  uint64_t differing;   /* mask: they told another digest than the lowest rank that told one */
  uint64_t gone;        /* mask: they left, or their processes are gone; tarpon_rejoin() leaves
                           them out */
  uint64_t late; /* mask: a report that was heard names them as late for a call of the step */
} tarpon_step_verdict;

/* ---- version and errors */

/* Returns the version of the library, "0.2.0". Any thread. */
TARPON_API const char* tarpon_version(void);

/* Returns what failed in the last function that failed on this thread: one line that names the
 * thing, the value and the remedy; "" before the first failure. The text is valid until the next
 * function fails on this thread. */
TARPON_API const char* tarpon_error_text(void);

/* Returns the name of a tarpon_error, "timeout", or "?". Any thread. */
TARPON_API const char* tarpon_error_name(int error);

/* Returns the name of a tarpon_status, "peer_late", or "?". Any thread. */
TARPON_API const char* tarpon_status_name(uint32_t status);

/* ---- a job */

/* Joins a job: all of its ranks call it. Blocks until they have, at most rendezvous_timeout_us.
 *
 * options       the place of this rank, and more
 * communicator  set to a new handle, which the caller owns
 *
 * Errors: INVALID_ARGUMENT (a member of `options`), MISMATCH (an option that must be alike is not),
 * TIMEOUT (names the ranks that did not come), PERMISSION, UNAVAILABLE, IO, NO_MEMORY. Ranks that
 * reach each other get the same error. Any thread, several at a time for different jobs. */
TARPON_API int tarpon_connect(const tarpon_options* options, tarpon_communicator** communicator);

/* The same, but takes what `options` leave out from the environment: the place of this rank from
 * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of torchrun, or the variables of Open MPI, MPICH
 * (PMI), PMIx and Slurm; TARPON_RENDEZVOUS=HOST:PORT, TARPON_RENDEZVOUS_TIMEOUT=2m,
 * TARPON_PORTS=29600-29699, TARPON_INTERFACE, TARPON_DATAPATH, TARPON_CODEC, TARPON_LOSS_TARGET=1%,
 * TARPON_ORDER=fixed, TARPON_MULTICAST=on, TARPON_HOSTS=off, TARPON_LANES=2,
 * TARPON_SHARES=auto, TARPON_FLIGHT=DIRECTORY. If a name in the rendezvous is not known yet, this
 * waits for it, for the rendezvous timeout at most. Environment variables are read as getenv()
 * reads them: no other thread may change them meanwhile.
 *
 * With TARPON_FLIGHT the rank also writes its recording on SIGUSR1, and before SIGTERM or a fault
 * ends the process: handlers are installed for those of these signals whose action is the default.
 * They are removed with the last communicator.
 *
 * options       NULL, or settings that take precedence over the environment; if world_size is set,
 *               `rank` is taken from here as well
 * communicator  set to a new handle, which the caller owns
 *
 * Errors: as tarpon_connect(); INVALID_ARGUMENT names a variable and its value as well. */
TARPON_API int tarpon_connect_from_environment(const tarpon_options* options,
                                               tarpon_communicator** communicator);

/* Checks options and variables as tarpon_connect_from_environment() does before it meets another
 * rank. Opens nothing. A rank that cannot take part can thus tell the others before they wait.
 *
 * Errors: INVALID_ARGUMENT names the member, or the variable and its value. Any thread. */
TARPON_API int tarpon_check_environment(const tarpon_options* options);

/* Listens for the ranks of a job that pass the address of rank 0 on themselves, for example through
 * a store of keys and values. Rank 0 calls it, gives tarpon_listener_address() to the other ranks,
 * which connect with it as their `rendezvous`, and connects with `listener`. Does not block, except
 * in the system's resolver if `host` is a name.
 *
 * host       NULL, or a host that all ranks reach, such as that of the store: rank 0 listens on the
 *            interface that reaches it
 * interface  NULL, or the interface to listen on; NULL: that of TARPON_INTERFACE where it is set
 * listener   set to a new handle, which the caller owns
 *
 * Errors: INVALID_ARGUMENT (names the interfaces that exist), UNAVAILABLE (`host` is not known, or
 * no route leads there), IO, NO_MEMORY. Any thread. */
TARPON_API int tarpon_listen(const char* host, const char* interface, tarpon_listener** listener);

/* Returns the address for the other ranks, "tcp://10.0.0.1:45123"; "" for NULL. Valid until the
 * listener is freed. Any thread. */
TARPON_API const char* tarpon_listener_address(const tarpon_listener* listener);

/* Frees the listener, before or after a communicator that was connected by it. */
TARPON_API void tarpon_listener_free(tarpon_listener* listener);

/* Returns the rank of this process, 0 .. tarpon_world_size() - 1; UINT32_MAX for NULL. Any thread.
 */
TARPON_API uint32_t tarpon_rank(const tarpon_communicator* communicator);

/* Returns the number of ranks; 0 for NULL. Any thread. */
TARPON_API uint32_t tarpon_world_size(const tarpon_communicator* communicator);

/* Returns which bit stands for a rank in masks: the rank's number; in a job of more than 64 ranks,
 * the number of its host. UINT32_MAX for NULL, and if there is no such rank. Any thread. */
TARPON_API uint32_t tarpon_mask_bit(const tarpon_communicator* communicator, uint32_t rank);

/* Returns the datapath of this rank, "xdp", "uring" or "mmsg"; "" for NULL. Valid until the
 * communicator is freed, as is the text of the next six. Any thread. */
TARPON_API const char* tarpon_datapath_name(const tarpon_communicator* communicator);

/* Returns what protects the packets of the job: "udp" or "crc32c", with a secret "keyed" or
 * "sealed"; "" for NULL. Any thread. */
TARPON_API const char* tarpon_integrity_name(const tarpon_communicator* communicator);

/* Returns a warning in one line if the job has no secret and a rank's address is neither loopback
 * nor private; "" else, and for NULL. In a job of more than 64 ranks only rank 0 knows the addresses
 * of all. Any thread. */
TARPON_API const char* tarpon_exposed(const tarpon_communicator* communicator);

/* Returns the interface that carries this rank's traffic, "eth0"; "" for NULL. Any thread. */
TARPON_API const char* tarpon_interface_name(const tarpon_communicator* communicator);

/* Returns why packets are smaller than the interfaces allow, in one line that names the pair of
 * ranks whose path carries less; "" where they are not, and for NULL. Any thread. */
TARPON_API const char* tarpon_shrunk_slots(const tarpon_communicator* communicator);

/* Returns whether the job multicasts: "on", or "off: " and the reason in one line; "" where
 * nothing asked for it, and for NULL. Any thread. */
TARPON_API const char* tarpon_multicast(const tarpon_communicator* communicator);

/* Returns how the ranks lie on hosts, and how much memory a call shares at most, or "off: " and the
 * reason, in one line; "" where no two ranks share a host, and for NULL. Any thread. */
TARPON_API const char* tarpon_hosts(const tarpon_communicator* communicator);

/* ---- AllReduce */

/* Reduces `count` elements over all ranks. Blocks until the call has ended, at most its deadline.
 *
 * arguments  what is asked; copied. The buffers belong to the caller again on return
 * report     NULL, or set to a new report, which the caller owns, whenever the call took its
 * number: also when the function returns NO_RESULT, or refuses the call. Else it stays as it is
 *
 * Returns OK when the output is defined: complete, partial and late_self. In bounded mode read the
 * report. Errors: NO_RESULT (the call ended otherwise; the text is that of the report);
 * INVALID_ARGUMENT (communicator or arguments are NULL, `size` is wrong, members that this version
 * does not know are set, the tag is reserved); UNAVAILABLE (TARPON_FOLLOW, and no other rank has
 * ended the call: it takes no number); NO_MEMORY. Any thread; see CONCURRENCY and REFUSED CALLS
 * above. */
TARPON_API int tarpon_allreduce(tarpon_communicator* communicator,
                                const tarpon_arguments* arguments, tarpon_report** report);

/* Starts the same call and returns, without waiting for other ranks or calls. Up to 8 calls of a
 * tag run at once; further ones queue, as do calls with learnt shares while the ranks exchange
 * measurements.
 *
 * arguments  what is asked; copied. The buffers belong to the call until it has ended
 * call       set to a new handle, which the caller owns
 *
 * Errors: INVALID_ARGUMENT and UNAVAILABLE as tarpon_allreduce(), INVALID_ARGUMENT for a NULL
 * `call`; NO_MEMORY. Other arguments that make no sense are found when the call is waited for. Any
 * thread. */
TARPON_API int tarpon_allreduce_start(tarpon_communicator* communicator,
                                      const tarpon_arguments* arguments, tarpon_call** call);

/* Runs another collective than AllReduce; exact, with repair, deadline and blame, or bounded.
 * Blocks until the call has ended. A rank may be done while others still run: an OK of an exact
 * call says that its output is defined, and that the ranks which need its data have it, can fetch
 * it from the library, or have given the call up.
 *
 * arguments  the collective, its buffers and its options; copied. On return the buffers belong to
 *            the caller again
 * report     as that of tarpon_allreduce()
 *
 * Returns and errors as tarpon_allreduce(). Any thread. */
TARPON_API int tarpon_collective(tarpon_communicator* communicator,
                                 const tarpon_collective_arguments* arguments,
                                 tarpon_report** report);

/* Starts the same call, as tarpon_allreduce_start() does. Any thread. */
TARPON_API int tarpon_collective_start(tarpon_communicator* communicator,
                                       const tarpon_collective_arguments* arguments,
                                       tarpon_call** call);

/* Sends a message to another rank, which receives it by tarpon_recv(). Messages match by sender,
 * receiver and tag, in their order, apart from all collectives. Blocks until the receiver has the
 * message. A receiver that does not call tarpon_recv() ends the call at its deadline.
 *
 * message  copied. On return the data belongs to the caller again
 * report   as that of tarpon_allreduce()
 *
 * Returns and errors as tarpon_allreduce(); INVALID_ARGUMENT also if `peer` is no other rank. Such
 * a call takes no number. Any thread. */
TARPON_API int tarpon_send(tarpon_communicator* communicator, const tarpon_message* message,
                           tarpon_report** report);

/* Receives a message of another rank. Blocks until it is there. Else as tarpon_send(). */
TARPON_API int tarpon_recv(tarpon_communicator* communicator, const tarpon_message* message,
                           tarpon_report** report);

/* Start the same calls, as tarpon_allreduce_start() does. Any thread. */
TARPON_API int tarpon_send_start(tarpon_communicator* communicator, const tarpon_message* message,
                                 tarpon_call** call);
TARPON_API int tarpon_recv_start(tarpon_communicator* communicator, const tarpon_message* message,
                                 tarpon_call** call);

/* Waits at most `timeout_us` until another rank sends a message of `tag` to this one that this rank
 * has not begun to receive, and sets *peer to that rank: tarpon_recv() from it takes the message.
 * One thread at a time probes for a tag.
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL), TIMEOUT, UNAVAILABLE (the communicator was
 * aborted).
 */
TARPON_API int tarpon_probe(tarpon_communicator* communicator, uint32_t tag, int64_t timeout_us,
                            uint32_t* peer);

/* Begins a group of calls of this thread. Until tarpon_group_end(), the functions that block until
 * a call has ended (tarpon_allreduce(), tarpon_collective(), tarpon_send(), tarpon_recv()) start it
 * instead, so that messages in any order wait for each other. `report` has to be NULL there. Groups
 * within a group belong to the outer one. Calls of several communicators may be in one group. */
TARPON_API int tarpon_group_start(void);

/* Blocks until all calls of the group have ended.
 *
 * Returns OK when all have a result, else the first error; the text is that of its call. Errors:
 * those of the calls, INVALID_ARGUMENT (this thread is in no group). */
TARPON_API int tarpon_group_end(void);

/* Sets *done to 1 when the call has ended, else to 0. Does not block.
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL). Any thread. */
TARPON_API int tarpon_test(const tarpon_call* call, int* done);

/* Blocks until the call has ended; the thread moves packets meanwhile. A call may be waited for
 * more than once, and by several threads.
 *
 * report  NULL, or set to a new report, which the caller owns, also when it returns NO_RESULT
 *
 * Returns OK when the output is defined. Errors: NO_RESULT, INVALID_ARGUMENT (`call` is NULL),
 * NO_MEMORY. Any thread. */
TARPON_API int tarpon_wait(tarpon_call* call, tarpon_report** report);

/* Frees the handle. A call that has not ended goes on: its buffers belong to it until its
 * communicator has been freed. */
TARPON_API void tarpon_call_free(tarpon_call* call);

/* ---- reports */

/* Fills `summary`, whose size the caller has set.
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL, `size` is wrong). Any thread. */
TARPON_API int tarpon_report_summary(const tarpon_report* report, tarpon_summary* summary);

/* Gives the ranks of one of the report's lists, in rising order, for a job of any size.
 *
 * which     tarpon_rank_list
 * ranks     filled with the first `capacity` of them; may be NULL for a capacity of 0
 * count     set to how many there are
 *
 * Errors: INVALID_ARGUMENT (report, count or `ranks` is NULL, no such list). Any thread. */
TARPON_API int tarpon_report_ranks(const tarpon_report* report, uint32_t which, uint32_t* ranks,
                                   uint32_t capacity, uint32_t* count);

/* Returns the report in one line: status, reason, the call, and what came from each rank. Valid
 * until the report is freed; "" for NULL. Any thread. */
TARPON_API const char* tarpon_report_text(const tarpon_report* report);

/* Sets `loss` to the worse of itself and what the report means for its step: begin a step with a
 * loss of zeros (and its size), and call this for the report of each of its calls.
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL, `size` is wrong). */
TARPON_API int tarpon_report_loss(const tarpon_report* report, tarpon_loss* loss);

/* Frees the report. */
TARPON_API void tarpon_report_free(tarpon_report* report);

/* ---- more than one call */

/* Sets *calls to the number of this rank's next calls of `tag` that another rank which takes part
 * has ended. It is above 0 after a pause of this rank: calls with TARPON_FOLLOW then take these
 * results one by one. A rank that stood still hears how far the others are when it ends its next
 * call.
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL), UNAVAILABLE (a forked child). Does not block. Any
 * thread. */
TARPON_API int tarpon_behind(tarpon_communicator* communicator, uint32_t tag, uint32_t* calls);

/* Sets the loss target of calls that begin from now on (tarpon_options.loss_target). All ranks set
 * it between the same calls; a rank that is a call behind changes little. skip_above and halt_above
 * stay as they are.
 *
 * Errors: INVALID_ARGUMENT (communicator is NULL; not above 0 and below 1), UNAVAILABLE (a forked
 * child). Does not wait for other ranks. Any thread. */
TARPON_API int tarpon_set_loss_target(tarpon_communicator* communicator, double share);

/* Returns when every rank has entered it, at most `deadline_us` later.
 *
 * Errors: INVALID_ARGUMENT (communicator is NULL), TIMEOUT, MISMATCH, UNAVAILABLE (a rank is dead,
 * evicted or has left; the deadline was not positive). Any thread; barriers match in the order in
 * which they are called. */
TARPON_API int tarpon_barrier(tarpon_communicator* communicator, int64_t deadline_us);

/* Ends all outstanding calls as aborted, on every rank, with this rank as the blamed one. Later
 * calls end so at once: only tarpon_shrink(), tarpon_rejoin(), tarpon_close() and freeing still
 * work. A second tarpon_abort() has no effect.
 *
 * reason  why, for the others' reports; NULL: none
 *
 * Errors: INVALID_ARGUMENT (communicator is NULL), NO_MEMORY. Any thread, also while others wait.
 */
TARPON_API int tarpon_abort(tarpon_communicator* communicator, const char* reason);

/* Asks for the verdict on a step. The lowest live rank decides by the reports of all ranks that
 * arrive within half of the deadline. Blocks until `deadline_us` at most.
 *
 * step     steps ascend
 * loss     what this rank lost in the step; NULL: nothing
 * verdict  filled; its size is set by the caller. Without a verdict by the deadline it says halt
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL, a `size` is wrong), NO_MEMORY. One thread at a time
 * for one step. */
TARPON_API int tarpon_agree(tarpon_communicator* communicator, uint64_t step,
                            const tarpon_loss* loss, int64_t deadline_us,
                            tarpon_step_verdict* verdict);

/* Makes a communicator of some ranks of the job, which shares its sockets, threads and control
 * mesh. They all call it with the same ranks and number; other ranks need not know. When the old
 * communicator is freed, all calls of the new one end as aborted. tarpon_split(), tarpon_shrink()
 * and tarpon_rejoin() refuse the new one: they take the old one.
 *
 * ranks        ranks[i] becomes rank i; this rank is among them
 * count        of `ranks`
 * number       1 to 65535; no two calls of a rank give the same one
 * deadline_us  how long to wait for the others
 * part         set to a new handle, which the caller owns
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL, the ranks or the number make no sense, the
 * communicator was split from another one), MISMATCH (a rank gives other ranks under this number),
 * TIMEOUT and UNAVAILABLE (name the ranks that did not come). A number is used up unless the error
 * is INVALID_ARGUMENT. Any thread. */
TARPON_API int tarpon_split(tarpon_communicator* communicator, const uint32_t* ranks,
                            uint32_t count, uint32_t number, int64_t deadline_us,
                            tarpon_communicator** part);

/* Makes a communicator of the ranks that are neither dead nor evicted, who all call it: new ranks
 * in the old order. The old communicator ends its calls as aborted, and is then to be freed. When a
 * rank dies meanwhile, every rank may get TIMEOUT at its deadline: call it again.
 *
 * fresh  set to a new handle, which the caller owns
 *
 * Errors: INVALID_ARGUMENT (a pointer is NULL), TIMEOUT and UNAVAILABLE (name the ranks that did
 * not come), those of tarpon_connect(). One thread. */
TARPON_API int tarpon_shrink(tarpon_communicator* communicator, int64_t deadline_us,
                             tarpon_communicator** fresh);

/* The same with the ranks that were evicted, or dead by silence, and call it too
 * (tarpon_step_verdict.rejoin). Then tarpon_resync() gives them the state of the others. */
TARPON_API int tarpon_rejoin(tarpon_communicator* communicator, int64_t deadline_us,
                             tarpon_communicator** fresh);

/* Returns why ranks of the previous communicator are not in this one, which tarpon_shrink() or
 * tarpon_rejoin() made; "" if none is missing, and for NULL. Valid until the communicator is freed.
 * Any thread. */
TARPON_API const char* tarpon_left_out(const tarpon_communicator* communicator);

/* Copies `bytes` bytes, exactly, from rank `root` to all ranks, which all call it.
 *
 * data  read on root, written on the other ranks
 *
 * Errors: INVALID_ARGUMENT, MISMATCH (root or bytes differ), TIMEOUT, UNAVAILABLE. After an error
 * `data` is untouched from some byte on. One thread. */
TARPON_API int tarpon_resync(tarpon_communicator* communicator, uint32_t root, void* data,
                             uint64_t bytes, int64_t deadline_us);

/* Says goodbye: this rank makes no further call. Serves the others until they have what they need
 * of this rank, at most `deadline_us`. Not collective. The communicator is then to be freed.
 *
 * Errors: INVALID_ARGUMENT (communicator is NULL), TIMEOUT (names the ranks that still lack data).
 */
TARPON_API int tarpon_close(tarpon_communicator* communicator, int64_t deadline_us);

/* Frees the communicator. Outstanding calls end as aborted on all ranks. On return all calls are
 * done, and their buffers belong to the caller, whether their handles are freed or not. A rank that
 * frees it without tarpon_close() is dead to the others. Calls and reports may be freed before or
 * after it. */
TARPON_API void tarpon_communicator_free(tarpon_communicator* communicator);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-deprecated-headers, modernize-use-using) */
