/* A thread pool whose caller never waits for a thread that has not started working.
 *
 * Workers claim task indices from a counter and so does the caller. A worker that the system does
 * not schedule in time claims nothing, and the caller does its share: on a busy machine a parallel
 * call costs about what a serial one costs, where a barrier would wait for a time slice.
 */
#define _POSIX_C_SOURCE 200809L
#include "mx.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_WORKERS = 255, SPINS = 1000 };

static pthread_mutex_t callers = PTHREAD_MUTEX_INITIALIZER; /* one parallel call at a time */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards everything below */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static atomic_ulong generation;
static atomic_int active;
static atomic_long next_index;
static struct { mx_task task; void *context; long count; int workers, open; } job;
static int worker_count;
static void *scratch[MX_SCRATCH_SLOTS];
static size_t scratch_bytes[MX_SCRATCH_SLOTS];

static inline void relax(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

/* Subnormal numbers are data here: run with the default floating-point environment, whatever the
   calling thread has set, and restore it. */
#if defined(__x86_64__)
static unsigned enter_fp(void) { unsigned old = _mm_getcsr(); _mm_setcsr(0x1F80); return old; }
static void leave_fp(unsigned old) { _mm_setcsr(old); }
#else
static unsigned enter_fp(void) { return 0; }
static void leave_fp(unsigned old) { (void)old; }
#endif

static void work(mx_task task, void *context, long count) {
  unsigned fp = enter_fp();
  for (;;) {
    long index = atomic_fetch_add_explicit(&next_index, 1, memory_order_relaxed);
    if (index >= count) break;
    task(context, index);
  }
  leave_fp(fp);
}

static void *worker_main(void *argument) {
  int id = (int)(intptr_t)argument;
  unsigned long seen = 0;
  for (;;) {
    for (int i = 0; i < SPINS && atomic_load_explicit(&generation, memory_order_acquire) == seen; i++)
      relax();
    pthread_mutex_lock(&lock);
    while (atomic_load(&generation) == seen) pthread_cond_wait(&wake, &lock);
    seen = atomic_load(&generation);
    int mine = job.open && id < job.workers;
    mx_task task = job.task; void *context = job.context; long count = job.count;
    if (mine) atomic_fetch_add(&active, 1);
    pthread_mutex_unlock(&lock);
    if (!mine) continue;
    work(task, context, count);
    atomic_fetch_sub_explicit(&active, 1, memory_order_release);
  }
  return NULL;
}

static void after_fork(void) { /* the child has no workers, and locks may be held by lost threads */
  pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
  callers = fresh; lock = fresh; wake = cond;
  worker_count = 0;
  atomic_store(&active, 0);
}

static void grow(int wanted) { /* called with `lock` held */
  static int registered;
  if (!registered) { pthread_atfork(NULL, NULL, after_fork); registered = 1; }
  if (wanted > MAX_WORKERS) wanted = MAX_WORKERS;
  while (worker_count < wanted) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, worker_main, (void *)(intptr_t)worker_count);
    pthread_attr_destroy(&attributes);
    if (failed) return; /* fewer threads: the caller does the rest */
    worker_count++;
  }
}

void mx_run(mx_task task, void *context, long count, int threads) {
  if (threads > count) threads = (int)count;
  if (threads <= 1) {
    unsigned fp = enter_fp();
    for (long i = 0; i < count; i++) task(context, i);
    leave_fp(fp);
    return;
  }
  pthread_mutex_lock(&lock);
  grow(threads - 1);
  job.task = task; job.context = context; job.count = count;
  job.workers = threads - 1; job.open = 1;
  atomic_store(&next_index, 0);
  atomic_fetch_add_explicit(&generation, 1, memory_order_release);
  pthread_cond_broadcast(&wake);
  pthread_mutex_unlock(&lock);
  work(task, context, count);
  pthread_mutex_lock(&lock);
  job.open = 0;
  pthread_mutex_unlock(&lock);
  for (int i = 0; atomic_load_explicit(&active, memory_order_acquire) > 0; i++) {
    if (i < SPINS) relax(); else sched_yield();
  }
}

void mx_begin(void) { pthread_mutex_lock(&callers); }
void mx_end(void) { pthread_mutex_unlock(&callers); }

void *mx_scratch(int slot, size_t bytes) {
  if (scratch_bytes[slot] < bytes) {
    free(scratch[slot]);
    scratch[slot] = NULL; scratch_bytes[slot] = 0;
    size_t rounded = (bytes + 4095) & ~(size_t)4095;
    if (posix_memalign(&scratch[slot], 64, rounded)) return NULL;
    scratch_bytes[slot] = rounded;
  }
  return scratch[slot];
}

/* 0: baseline, 1: AVX2 and FMA, 2: AVX-512 (F, BW, VL, DQ). */
MX_API int mx_cpu_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}
