/*
 * streampool: a stream-ordered memory pool for CUDA devices. The C interface.
 *
 * Link with -lstreampool. The CUDA driver (libcuda.so.1) is loaded when the first pool is made: a program
 * also starts on a machine without one. No CUDA header is needed: a stream is a CUstream or a
 * cudaStream_t, passed as void *; memory is a device address, passed as void *.
 *
 * WHAT YOU OWE. When a buffer is freed, every device operation that uses it has been submitted: to its home
 * stream (the one that it was allocated on, or moved to), or to a stream that streampool_use_on named while
 * the buffer lived, or on another stream before a point that the home stream already waits for. The
 * implicit barriers of the legacy default stream do not count: name it.
 *
 * WHAT THE POOL OWES. No memory is handed to a stream before every operation of its earlier owners is
 * ordered before that stream's next operation.
 *
 * UNITS. All sizes are in bytes.
 *
 * ERRORS. A function that can fail returns a status, STREAMPOOL_OK (0) for success; on a failure nothing
 * has changed and the places for results are untouched, unless its comment says otherwise.
 * streampool_last_error() has the text, with the numbers. No function throws or unwinds, but for two of
 * PyTorch's (see there): a fault inside the library is STREAMPOOL_PANIC. Null where a pool, or a place for a
 * result, must be given is STREAMPOOL_INVALID_ARGUMENT. What is undefined is a pool that was destroyed, and
 * the handle of a stream that was destroyed.
 *
 * THREADS. Every function may be called from any thread at any time, whatever context is current there, and
 * leaves that as it was; also with the same pool, the same stream or the same buffer as another thread's
 * call, except that streampool_destroy must be the pool's last call. A scope alone belongs to its thread. An
 * allocation that finds its size among what its stream has freed, and every free, makes no driver call.
 *
 * STREAMS. A pool registers a stream at the first call that names it, with a driver call or two. From then
 * on the stream must live until streampool_retire_stream has succeeded for it, or streampool_close or
 * streampool_destroy for the pool: CUDA gives the handle of a destroyed stream to the next new one while the
 * old one's work is pending, and the pool could not tell the two apart. So: retire, then destroy. Null and 1
 * (CU_STREAM_LEGACY) are the legacy default stream, which needs no retiring. 2 (CU_STREAM_PER_THREAD) is
 * another stream on each thread and is refused, STREAMPOOL_WRONG_STREAM; so is a stream of another context.
 *
 * CAPTURES. A stream that is capturing into a graph cannot allocate, and must not be named or freed on:
 * STREAMPOOL_CAPTURING where the pool looks, and undefined order where it does not (an allocation from the
 * stream's own list, a free).
 */
#ifndef STREAMPOOL_H
#define STREAMPOOL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A pool of one context. Made by streampool_create, ended by streampool_destroy. */
typedef struct streampool_pool streampool_pool;

/* A quiescent scope of one thread: a number, never 0. */
typedef uint64_t streampool_scope;

/* What a call returns. Numbers are never reused; later versions may add some. */
typedef enum streampool_status {
    STREAMPOOL_OK = 0,
    /* Neither the pool nor, within its limit, the device has the memory. */
    STREAMPOOL_OUT_OF_MEMORY = 1,
    /* The request is larger than any device's memory: most often a size that has wrapped. */
    STREAMPOOL_TOO_LARGE = 2,
    /* An argument is null, or out of its documented range. */
    STREAMPOOL_INVALID_ARGUMENT = 3,
    /* No live buffer of this pool begins at this address: it never did, or it was freed (a double free). */
    STREAMPOOL_UNKNOWN_ADDRESS = 4,
    /* The stream belongs to another context, or is the per-thread default stream. */
    STREAMPOOL_WRONG_STREAM = 5,
    /* The scope was begun on another thread. It is still open there. */
    STREAMPOOL_WRONG_THREAD = 6,
    /* The scope was ended already. */
    STREAMPOOL_UNKNOWN_SCOPE = 7,
    /* A stream is capturing into a graph. It may succeed once the capture has ended. */
    STREAMPOOL_CAPTURING = 8,
    /* Live buffers, or calls under way on other threads, forbid it. */
    STREAMPOOL_IN_USE = 9,
    /* The pool was closed. */
    STREAMPOOL_CLOSED = 10,
    /* No CUDA driver can be loaded. */
    STREAMPOOL_NO_DRIVER = 11,
    /* The device has met an error that every later call returns too. */
    STREAMPOOL_DEVICE_LOST = 12,
    /* The process is exiting, and the driver is not called any more. */
    STREAMPOOL_EXITING = 13,
    /* Any other error of the driver. */
    STREAMPOOL_DRIVER = 14,
    /* A fault in this library. */
    STREAMPOOL_PANIC = 15,
    /* A file cannot be written. */
    STREAMPOOL_FILE = 16
} streampool_status;

/* Called with `user` and the bytes that a request needs, when a pool cannot serve it: it can free buffers,
 * on which the pool searches once more. On any thread that allocates, with no lock held; several at once. It
 * must return: no exception, no longjmp. */
typedef void (*streampool_pressure_hook)(void *user, uint64_t bytes);

/* How a pool behaves. Set it up by streampool_config_init, then change what you need. */
typedef struct streampool_config {
    /* sizeof(streampool_config), set by streampool_config_init. */
    uint32_t size;
    /* What a miss prefers: STREAMPOOL_REUSE_... */
    uint32_t reuse;
    /* How memory is taken from the device: STREAMPOOL_GROWTH_... */
    uint32_t growth;
    /* 0: never make a stream wait for all that another has queued by now; rather run out of memory. 1, the
     * default, allows it. */
    uint32_t late_waits;
    /* 1: streams that the pool does not know may be capturing when a scope begins or ends; the pool then
     * waits for its own streams only. 0 by default. */
    uint32_t foreign_captures;
    /* How many of its latest events each stream keeps, for streampool_write_snapshot and
     * streampool_write_trace; with 1 or more the pool also keeps what buffers are for (see TAGS). 72 bytes each;
     * allocations and frees take some 55 ns longer then. 0, none of it, by default. */
    uint32_t history;
    /* The most bytes that the pool takes from the device; 0, the default, for no limit. */
    uint64_t limit;
    /* The same as a fraction of the device's memory, above 0 and 1 at most; 0 for no limit. Not with limit. */
    double limit_fraction;
    /* Bytes to take when the pool is made. 0 by default. */
    uint64_t reserve;
    /* Below so many reserved bytes a miss grows rather than asks for what other streams have freed.
     * STREAMPOOL_DEFAULT, the default, is 128 MiB. */
    uint64_t floor;
    /* Up to so many reserved bytes a miss grows rather than makes a stream wait late; 0, the default, for a
     * quarter above the most that has been in use. */
    uint64_t soft_target;
    /* Called when a request cannot be served; or null. */
    streampool_pressure_hook on_pressure;
    /* What it is called with. */
    void *user;
} streampool_config;

#define STREAMPOOL_DEFAULT UINT64_MAX

/* Grow below the floor, reuse what is free or waits for an event of a moment that the program chose, grow to
 * the soft target, reuse by late waits, grow to the limit. */
#define STREAMPOOL_REUSE_BALANCED 0u
/* Reuse before any growth: the least memory. */
#define STREAMPOOL_REUSE_MEMORY 1u
/* Grow before any wait. */
#define STREAMPOOL_REUSE_SPEED 2u

/* By virtual memory where the device has it: no fragmentation, and memory goes back without stalling the
 * device. It cannot be exported by cudaIpcGetMemHandle, and other devices have no access to it. */
#define STREAMPOOL_GROWTH_VIRTUAL 0u
/* By plain segments (cuMemAlloc). */
#define STREAMPOOL_GROWTH_SEGMENTS 1u

/* What a pool holds and has done. Set `size` before the call. At rest, reserved = in_use + free_clean +
 * free_pending + quarantined. */
typedef struct streampool_stats {
    /* In: sizeof(streampool_stats). Out: how many bytes of it were filled. */
    uint32_t size;
    /* Out: the version of the structure, 1. A later one only adds fields at the end. */
    uint32_t version;
    /* Taken from the device and not given back, and the most that has been (exact). */
    uint64_t reserved;
    uint64_t peak_reserved;
    /* In buffers, as the pool rounds them, and the most that has been seen. */
    uint64_t in_use;
    uint64_t peak_in_use;
    /* Free, and waiting for nothing. */
    uint64_t free_clean;
    /* Free, and waiting for work on some stream. */
    uint64_t free_pending;
    /* The part of free_pending that is on the streams' own lists. */
    uint64_t on_lists;
    /* The largest free block that is not on a list. */
    uint64_t largest_free;
    /* On the way between two owners. */
    uint64_t in_transit;
    /* Out of reach until a synchronize succeeds. */
    uint64_t quarantined;
    /* Counts: live buffers, registered streams, mapped granules. */
    uint64_t live;
    uint64_t streams;
    uint64_t granules;
    /* Allocations that the stream's own list served, those that it did not, and frees. */
    uint64_t hits;
    uint64_t misses;
    uint64_t frees;
    /* How misses were served: by memory that needed no wait; after asking whether work had finished; after
     * gathering every list; by a wait on an event of a moment that the program chose; by a wait for all that
     * another stream has queued; by growth. And those that met an empty device or limit. */
    uint64_t covered;
    uint64_t asked;
    uint64_t gathered;
    uint64_t early_steals;
    uint64_t late_steals;
    uint64_t growths;
    uint64_t ladders;
    /* Errors that no call could tell: see streampool_take_error. */
    uint64_t stray_errors;
    /* Driver calls in all, and of some kinds. */
    uint64_t driver_calls;
    uint64_t event_records;
    uint64_t stream_waits;
    uint64_t context_synchronizes;
    uint64_t memory_calls;
    /* Since version 2. Misses that were served after the host had waited for all that was submitted. */
    uint64_t synchronized;
    /* Granules of free memory that were mapped at a further address, where they were wanted; and those that
     * were of use again where they still were mapped, which takes no driver call. */
    uint64_t remapped;
    uint64_t revived;
} streampool_stats;

/* What became of the buffers freed in a scope. */
typedef struct streampool_report {
    /* Buffers freed in the scope, by its thread, into its pool, and the bytes of their blocks. */
    uint64_t freed;
    uint64_t bytes;
    /* Those that any stream may take with no wait now. */
    uint64_t clean;
    /* Those that keep their ordinary dependencies, because work on their streams was still under way. */
    uint64_t deferred;
} streampool_report;

/* ---- About the library ------------------------------------------------------------------------------- */

/* The version, "0.1.0". Lives as long as the process. */
const char *streampool_version(void);

/* The name of a status, "STREAMPOOL_OK". Any number may be asked for. Lives as long as the process. */
const char *streampool_status_name(int status);

/* What went wrong at the last call on this thread that failed; "" before the first. Valid until the next call
 * on this thread that fails. */
const char *streampool_last_error(void);

/* ---- Pools ------------------------------------------------------------------------------------------- */

/* Fills a configuration with the defaults. */
streampool_status streampool_config_init(streampool_config *config);

/* Makes a pool for the primary context of a device (the one that the CUDA runtime uses), by its ordinal, or
 * with STREAMPOOL_CURRENT_CONTEXT for the context that is current on the calling thread. A context that is
 * not a primary one must outlive the pool. `config` may be null. Takes no memory but `reserve`.
 *
 * STREAMPOOL_NO_DRIVER; STREAMPOOL_INVALID_ARGUMENT for an option out of its range; STREAMPOOL_OUT_OF_MEMORY
 * with `reserve`; STREAMPOOL_DRIVER, as for an ordinal that no device has. */
streampool_status streampool_create(int device, const streampool_config *config, streampool_pool **pool);

#define STREAMPOOL_CURRENT_CONTEXT (-1)

/* Ends a pool: waits for the work that its memory waits for, and gives all memory back. Its streams have left
 * it then. The handle stays, answers STREAMPOOL_CLOSED, and is to be destroyed.
 *
 * STREAMPOOL_IN_USE while buffers live or calls are under way: the pool goes on. STREAMPOOL_CAPTURING while a
 * stream captures that must be asked, or a driver error: call it again. */
streampool_status streampool_close(streampool_pool *pool);

/* Frees the handle, without waiting: memory that is still in use on the device goes back during later calls
 * on any pool. Null is no error. The pool's last call.
 *
 * STREAMPOOL_IN_USE while buffers live, STREAMPOOL_CAPTURING as for streampool_close: the handle is still
 * valid then. STREAMPOOL_INVALID_ARGUMENT for a default pool. */
streampool_status streampool_destroy(streampool_pool *pool);

/* Makes sure that the pool can serve so many bytes in all without taking memory from the device again. What
 * was taken until a failure stays. STREAMPOOL_OUT_OF_MEMORY; a driver error. */
streampool_status streampool_reserve(streampool_pool *pool, uint64_t bytes);

/* Gives unused memory back to the device, until at most `keep` bytes are reserved or no more is unused, and
 * says how many bytes went (`given_back` may be null). Waits for nothing. A driver error. */
streampool_status streampool_trim(streampool_pool *pool, uint64_t keep, uint64_t *given_back);

/* Blocks until everything that is queued on the pool's streams has finished. A driver error. */
streampool_status streampool_synchronize(streampool_pool *pool);

/* What the pool holds and has done. Makes no driver call. STREAMPOOL_INVALID_ARGUMENT when `size` is not set. */
streampool_status streampool_get_stats(streampool_pool *pool, streampool_stats *stats);

/* Starts the peaks anew from what is reserved and in use now. */
streampool_status streampool_reset_peak(streampool_pool *pool);

/* Takes the last error that no call could tell (of tidying up, of a scope's end), and fails with it;
 * STREAMPOOL_OK when there is none. */
streampool_status streampool_take_error(streampool_pool *pool);

/* ---- Buffers ----------------------------------------------------------------------------------------- */

/* Allocates `bytes` bytes, aligned to 256 bytes, for use on `stream`, which is the buffer's home. Not
 * initialised. Zero bytes give null, which can be freed.
 *
 * STREAMPOOL_OUT_OF_MEMORY, after everything that the pool may try, with all numbers in the text;
 * STREAMPOOL_TOO_LARGE; STREAMPOOL_WRONG_STREAM; STREAMPOOL_CAPTURING; STREAMPOOL_CLOSED;
 * STREAMPOOL_DEVICE_LOST; STREAMPOOL_EXITING; STREAMPOOL_DRIVER. The pool goes on. */
streampool_status streampool_allocate(streampool_pool *pool, size_t bytes, void *stream, void **out);

/* The same, aligned to `alignment` bytes: a power of two from 1 to 2^30, or STREAMPOOL_INVALID_ARGUMENT. */
streampool_status streampool_allocate_aligned(streampool_pool *pool, size_t bytes, size_t alignment,
                                              void *stream, void **out);

/* Frees a buffer by its address, whatever stream or thread. Null is no error. Makes no driver call, and
 * waits for nothing but a call on the same buffer that is under way.
 *
 * STREAMPOOL_UNKNOWN_ADDRESS for an address that was freed, of the inside of a buffer, or of another pool. */
streampool_status streampool_free(streampool_pool *pool, void *buffer);

/* How large a buffer is: as asked for, and its block, all of which may be used. Each place may be null.
 * STREAMPOOL_UNKNOWN_ADDRESS. */
streampool_status streampool_size(streampool_pool *pool, const void *buffer, size_t *bytes,
                                  size_t *capacity);

/* Lets `stream` use a buffer from now on: makes it wait for all that is queued on the home stream by now, and
 * has the buffer's next owner wait for all that is queued on `stream` when the buffer is freed. To be called
 * each time that work on the home stream is to come before work there. Nothing if `stream` is home, or the
 * buffer is null.
 *
 * STREAMPOOL_UNKNOWN_ADDRESS; STREAMPOOL_WRONG_STREAM; STREAMPOOL_CAPTURING for either stream; a driver
 * error. */
streampool_status streampool_use_on(streampool_pool *pool, const void *buffer, void *stream);

/* Makes `stream` the home stream, after making it wait for all that is queued on the present one by now. To be
 * called before a stream is retired whose buffers go on. Errors as for streampool_use_on. */
streampool_status streampool_move_to(streampool_pool *pool, const void *buffer, void *stream);

/* ---- Streams ----------------------------------------------------------------------------------------- */

/* Registers a stream before its first use: a choice, to have the driver calls and the errors then.
 * STREAMPOOL_WRONG_STREAM; STREAMPOOL_CAPTURING; STREAMPOOL_CLOSED; a driver error. */
streampool_status streampool_register_stream(streampool_pool *pool, void *stream);

/* Lets a stream leave the pool, before its owner destroys it. What was freed on it stays in the pool, with its
 * dependencies. A stream that the pool does not know is no error.
 *
 * STREAMPOOL_IN_USE while buffers at home on it live, or buffers that name it, or calls are under way: free or
 * move them first. STREAMPOOL_CAPTURING; a driver error. The stream is still registered then, and must
 * live. */
streampool_status streampool_retire_stream(streampool_pool *pool, void *stream);

/* ---- Scopes ------------------------------------------------------------------------------------------ */

/* Waits once for everything that was submitted to the device, and opens a scope on this thread: all that was
 * freed before is clean, and what this thread frees until the end is settled there, by one event for all. Any
 * work may be submitted inside. Scopes nest, and may end in any order; one that is open when its thread ends
 * is ended there. A driver error: there is no scope then. */
streampool_status streampool_quiesce_begin(streampool_pool *pool, streampool_scope *scope);

/* Ends a scope, on the thread that has begun it, and says what became of the buffers freed in it (`report` may
 * be null). The pool may be destroyed already. STREAMPOOL_WRONG_THREAD; STREAMPOOL_UNKNOWN_SCOPE for any other
 * number. */
streampool_status streampool_quiesce_end(streampool_scope scope, streampool_report *report);

/* ---- Tags, and what a pool shows of itself ----------------------------------------------------------- */

/* TAGS say what buffers are for, in words such as "activations, layer 3", to those who look at a snapshot or a
 * trace. They are UTF-8; of a text that is longer than 256 bytes the beginning is kept; a text is kept for as
 * long as the process lives, 65 535 different ones at most (the rest is shown as one), so that it should name a
 * kind of buffers, and no step or request. Pools whose `history` is 0 keep none. */

/* From here on what this thread allocates, from whatever pool, is for this; until streampool_tag_pop. Nests:
 * the last one counts. STREAMPOOL_INVALID_ARGUMENT also when 1024 are pushed: then pops are missing. */
streampool_status streampool_tag_push(const char *text);

/* Takes back what this thread has pushed last. STREAMPOOL_INVALID_ARGUMENT when there is nothing. */
streampool_status streampool_tag_pop(void);

/* Says what one buffer is for, in the place of what was said before. A null buffer is no error, a null
 * text is: STREAMPOOL_INVALID_ARGUMENT.
 * STREAMPOOL_UNKNOWN_ADDRESS. */
streampool_status streampool_set_tag(streampool_pool *pool, const void *buffer, const char *text);

/* Writes every segment and block with its owner and tag to a file, and with a `history` the events that led
 * there, for https://pytorch.org/memory_viz and scripts/open-snapshot.py: a pickle, in the format of
 * torch.cuda.memory._dump_snapshot. Makes no driver call. STREAMPOOL_FILE: a part may be written. */
streampool_status streampool_write_snapshot(streampool_pool *pool, const char *path);

/* Writes the latest events to a file, for https://ui.perfetto.dev: JSON, without a `history` of no event. Makes
 * no driver call. STREAMPOOL_FILE: a part may be written. */
streampool_status streampool_write_trace(streampool_pool *pool, const char *path);

/* ---- Default pools ----------------------------------------------------------------------------------- */

/* Chooses the options of the default pools that are not made yet: null for the defaults. The hook, if there
 * is one, may be called until the process ends. STREAMPOOL_INVALID_ARGUMENT; options out of their range are
 * found when a pool is made. */
streampool_status streampool_default_configure(const streampool_config *config);

/* The default pool of a device, made at the first call. It lives as long as the process. Errors as for
 * streampool_create. */
streampool_status streampool_default_pool(int device, streampool_pool **pool);

/* ---- PyTorch ----------------------------------------------------------------------------------------- */

/* For torch.cuda.memory.CUDAPluggableAllocator(path, "streampool_torch_alloc", "streampool_torch_free"): on
 * the default pool of the device. For PyTorch a null address is a success, and an exception is an error: so
 * where the process has a C++ runtime (libstdc++), streampool_torch_alloc and streampool_torch_record_stream
 * throw a std::runtime_error, which becomes a RuntimeError in Python ("CUDA out of memory. streampool: ...").
 * Where it has none the first returns null. Zero bytes give null, with no exception. */
void *streampool_torch_alloc(ssize_t size, int device, void *stream);

/* Frees what streampool_torch_alloc returned; `size` and `stream` are not looked at. Never throws: for an
 * address that is not there, streampool_last_error() has the text. */
void streampool_torch_free(void *address, ssize_t size, int device, void *stream);

/* For the allocator's set_record_stream_fn: Tensor.record_stream, by streampool_use_on. Memory that no default
 * pool knows is left alone. */
void streampool_torch_record_stream(void *address, void *stream);

/* For the allocator's set_reset_fn: torch.cuda.empty_cache(), by streampool_trim of all default pools. */
void streampool_torch_empty_cache(void);

#ifdef __cplusplus
}
#endif

#endif
