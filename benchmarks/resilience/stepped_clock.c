/* The time of day, shifted by as many seconds as a file says: preloaded into the processes under
 * test, so that their clock can be stepped while they run. Clocks that never step are left alone.
 *
 * A deadline by the time of day is shifted back before the kernel waits for it, which a real step
 * would do to the kernel's own clock. Such deadlines are told from those of a monotonic clock by
 * their size. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LEAST_TIME_OF_DAY_S 1000000000L

static volatile const long *shift;

__attribute__((constructor)) static void open_shift(void)
{
    static const long none = 0;
    const char *path = getenv("SOJOURN_CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    shift = mapped == MAP_FAILED ? &none : mapped;
}

static long shift_s(void)
{
    return shift ? *shift : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into)
        *into = exact.tv_sec;
    return exact.tv_sec;
}

static struct timespec shifted_back(const struct timespec *deadline)
{
    struct timespec back = *deadline;
    if (back.tv_sec >= LEAST_TIME_OF_DAY_S)
        back.tv_sec -= shift_s();
    return back;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* not that of 2.2.5 */
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec back = shifted_back(deadline);
    return real(condition, mutex, &back);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
                            const struct timespec *restrict deadline)
{
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec back = shifted_back(deadline);
    return real(mutex, &back);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec back = shifted_back(deadline);
    return real(semaphore, &back);
}
