/* Threads that run the operations of a program together, without a barrier.

   Everything a thread needs to find work is one 64-bit word: which run, which operation of it, and how many of its
   units nobody has taken. A unit is taken by counting the word down with compare-and-swap. So a thread that comes late,
   with a word of the past, takes nothing; a thread that has no unit is waited for by nobody, even if the system has put
   it aside; and whoever ends the last unit of an operation moves the word on to the next.

   What else belongs to an operation is read after a unit of it has been taken, and written when all units of the one
   before have ended: it never changes under a reader.

   The thread that calls takes part as worker 0 and never waits for the others to wake up. A pool is used by one caller
   at a time, and not in a forked child, which has none of the threads. */
#define _GNU_SOURCE
#include "pool.h"

#include <assert.h>
#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The word: run (28 bits) | operation (14) | units left to take (22). The number of a run comes again after 2**28 runs:
   a thread would have to be put aside between two instructions for days to take a word for another. */
#define LEFT_BITS 22
#define OPERATION_BITS 14
#define MAX_UNITS ((1 << LEFT_BITS) - 1)
#define IDLE ((1 << OPERATION_BITS) - 1) /* between two runs */
#define ENDED (IDLE - 1)                 /* the threads end */

/* How long a waiting thread keeps its core. Inside a run it then lets others have it for a moment; between two runs it
   then sleeps. */
#define BUSY_NANOSECONDS 15000
#define IDLE_NANOSECONDS 50000

typedef uint64_t Word;

struct Pool {
    _Alignas(CACHE_LINE) _Atomic Word word;
    _Alignas(CACHE_LINE) atomic_int pending; /* units of the operation that have not ended */
    _Alignas(CACHE_LINE) const Operation *operation;
    int32_t total; /* units of the operation */
    Work work;
    Word run;
    char *scratch;
    size_t scratch_bytes; /* of each thread */
    _Alignas(CACHE_LINE) atomic_int num_sleeping;
    atomic_uint wake_ups; /* futex */
    atomic_bool is_running;
    int32_t num_threads; /* the caller's included */
    pthread_t threads[];
};

typedef struct {
    Pool *pool;
    int32_t index;
} Start;

static Word make_word(Word run, int32_t operation, int32_t left) {
    return run << (OPERATION_BITS + LEFT_BITS) | (Word)operation << LEFT_BITS | (Word)left;
}
static Word run_of(Word word) { return word >> (OPERATION_BITS + LEFT_BITS); }
static int32_t operation_of(Word word) { return (int32_t)(word >> LEFT_BITS & IDLE); }
static int32_t left_of(Word word) { return (int32_t)(word & MAX_UNITS); }

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Publishes the first operation from `index` on that has units, or the end of the run. */
static void advance(Pool *pool, int32_t index) {
    for (; index < pool->work.num_operations; index++) {
        const Operation *operation = pool->work.operations[index];
        const int32_t count = operation->count(operation);
        assert(count >= 0 && count <= MAX_UNITS);
        if (!count) continue;
        pool->operation = operation;
        pool->total = count;
        atomic_store(&pool->pending, count);
        atomic_store(&pool->word, make_word(pool->run, index, count));
        return;
    }
    pool->run = run_of(make_word(pool->run + 1, 0, 0));
    atomic_store(&pool->word, make_word(pool->run, IDLE, 0));
}

/* Takes units and runs them while there are any. Returns the last word seen. */
static Word take_units(Pool *pool, int32_t index) {
    Word word = atomic_load(&pool->word);
    while (left_of(word)) {
        if (!atomic_compare_exchange_weak(&pool->word, &word, word - 1)) continue;
        Worker worker = {index, pool->scratch + (size_t)index * pool->scratch_bytes};
        pool->operation->run(pool->operation, pool->total - left_of(word), &worker);
        if (atomic_fetch_sub(&pool->pending, 1) == 1) advance(pool, operation_of(word) + 1);
        word = atomic_load(&pool->word);
    }
    return word;
}

/* Sleeps until `wake` is called, unless the word is not `seen` any more. */
static void sleep_after(Pool *pool, Word seen) {
    const unsigned wake_ups = atomic_load(&pool->wake_ups);
    atomic_fetch_add(&pool->num_sleeping, 1);
    if (atomic_load(&pool->word) == seen)
        syscall(SYS_futex, &pool->wake_ups, FUTEX_WAIT_PRIVATE, wake_ups, NULL, NULL, 0);
    atomic_fetch_sub(&pool->num_sleeping, 1);
}

/* To be called when the word has changed. */
static void wake(Pool *pool) {
    if (!atomic_load(&pool->num_sleeping)) return;
    atomic_fetch_add(&pool->wake_ups, 1);
    syscall(SYS_futex, &pool->wake_ups, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Waits until the word is not `seen` any more. */
static void await_change(Pool *pool, Word seen) {
    const bool is_idle = operation_of(seen) == IDLE;
    const int64_t patience = is_idle ? IDLE_NANOSECONDS : BUSY_NANOSECONDS, since = nanoseconds();
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load(&pool->word) != seen) return;
            pause_briefly();
        }
        if (nanoseconds() - since < patience) continue;
        if (is_idle) sleep_after(pool, seen);
        else sched_yield();
    }
}

static void *run_thread(void *argument) {
    const Start start = *(Start *)argument;
    free(argument);
    fesetenv(FE_DFL_ENV);
    for (;;) {
        const Word word = take_units(start.pool, start.index);
        if (operation_of(word) == ENDED) return NULL;
        await_change(start.pool, word);
    }
}

static int start_thread(Pool *pool) {
    Start *start = malloc(sizeof *start);
    if (!start) return -1;
    *start = (Start){pool, pool->num_threads};
    if (pthread_create(&pool->threads[pool->num_threads - 1], NULL, run_thread, start)) {
        free(start);
        return -1;
    }
    pthread_setname_np(pool->threads[pool->num_threads - 1], "limelight-cpu");
    pool->num_threads++;
    return 0;
}

/* Ends the threads and frees the pool, which must not be running anything. */
EXPORT void limelight_pool_free(Pool *pool) {
    if (!pool) return;
    atomic_store(&pool->word, make_word(0, ENDED, 0));
    wake(pool);
    for (int32_t i = 0; i < pool->num_threads - 1; i++) pthread_join(pool->threads[i], NULL);
    free(pool->scratch);
    free(pool);
}

/* A pool of `num_threads`, the caller's included, or NULL if the system does not give them. */
EXPORT Pool *limelight_pool_new(int32_t num_threads) {
    const size_t bytes = sizeof(Pool) + (size_t)num_threads * sizeof(pthread_t);
    Pool *pool = aligned_alloc(CACHE_LINE, whole_lines(bytes));
    if (!pool) return NULL;
    *pool = (Pool){.word = make_word(0, IDLE, 0), .num_threads = 1};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the threads inherit it: signals are Python's */
    int failed = 0;
    while (!failed && pool->num_threads < num_threads) failed = start_thread(pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return pool;
    limelight_pool_free(pool);
    return NULL;
}

static int reserve_scratch(Pool *pool, size_t bytes) {
    if (bytes <= pool->scratch_bytes) return 0;
    char *scratch = aligned_alloc(CACHE_LINE, (size_t)pool->num_threads * bytes);
    if (!scratch) return -1;
    free(pool->scratch);
    pool->scratch = scratch;
    pool->scratch_bytes = bytes;
    return 0;
}

static int run_on_this_thread(const Work *work) {
    void *scratch = NULL;
    if (work->scratch_bytes && !(scratch = aligned_alloc(CACHE_LINE, work->scratch_bytes))) return -1;
    Worker worker = {0, scratch};
    for (int32_t i = 0; i < work->num_operations; i++) {
        const Operation *operation = work->operations[i];
        const int32_t count = operation->count(operation);
        for (int32_t unit = 0; unit < count; unit++) operation->run(operation, unit, &worker);
    }
    free(scratch);
    return 0;
}

static int run_together(Pool *pool, const Work *work) {
    assert(work->num_operations < ENDED);
    const bool was_running = atomic_exchange(&pool->is_running, true);
    assert(!was_running);
    (void)was_running;
    if (reserve_scratch(pool, work->scratch_bytes)) {
        atomic_store(&pool->is_running, false);
        return -1;
    }
    const Word run = pool->run;
    pool->work = *work;
    advance(pool, 0);
    wake(pool);
    for (;;) {
        const Word word = take_units(pool, 0);
        if (run_of(word) != run) break;
        await_change(pool, word);
    }
    atomic_store(&pool->is_running, false);
    return 0;
}

int pool_run(Pool *pool, const Work *work) {
    /* What a unit computes must not depend on the thread: all round to nearest and keep subnormal numbers. */
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    const int failed = pool ? run_together(pool, work) : run_on_this_thread(work);
    fesetenv(&before);
    return failed;
}
