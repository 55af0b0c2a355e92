/* Makes calls of the C library fail, or lie about the time, as a file says that a test writes and this maps.
 *
 * Preloaded into the processes of a cluster. FILA_SHIM_CONTROL names the file, FILA_SHIM_PREFIX the directory whose files fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t write_errno; /* of writes to files below the prefix; 0: they work */
    int32_t sync_errno;
    int32_t read_errno;
    int32_t create_errno; /* of opening such files for writing */
    int64_t realtime_ms;  /* added to the wall clock */
    int64_t failures;     /* calls that were failed so far */
};

static struct control nothing, *control = &nothing;
static const char *prefix = "/nowhere/";

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FILA_SHIM_CONTROL");
    const char *wanted = getenv("FILA_SHIM_PREFIX");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd < 0 || !wanted) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return;
    prefix = wanted;
    control = mapped;
}

static int is_path_ours(const char *path) { return strncmp(path, prefix, strlen(prefix)) == 0; }

static int is_ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_path_ours(path);
}

static int fail(int error) {
    __atomic_add_fetch(&control->failures, 1, __ATOMIC_RELAXED);
    errno = error;
    return -1;
}

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })
#define WRAP(field, name, type, parameters, arguments)                      \
    type name parameters {                                                  \
        if (control->field && is_ours(fd)) return fail(control->field);     \
        return REAL(name) arguments;                                        \
    }

WRAP(write_errno, write, ssize_t, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(write_errno, pwrite, ssize_t, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(write_errno, pwrite64, ssize_t, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP(write_errno, writev, ssize_t, (int fd, const struct iovec *parts, int count), (fd, parts, count))
WRAP(write_errno, ftruncate, int, (int fd, off_t size), (fd, size))
WRAP(write_errno, fallocate, int, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
WRAP(write_errno, fallocate64, int, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
WRAP(sync_errno, fsync, int, (int fd), (fd))
WRAP(sync_errno, fdatasync, int, (int fd), (fd))
WRAP(sync_errno, sync_file_range, int, (int fd, off64_t at, off64_t size, unsigned flags), (fd, at, size, flags))
WRAP(read_errno, read, ssize_t, (int fd, void *data, size_t size), (fd, data, size))
WRAP(read_errno, pread, ssize_t, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(read_errno, pread64, ssize_t, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

#define OPEN(name)                                                                                                      \
    int name(const char *path, int flags, ...) {                                                                        \
        __builtin_va_list rest;                                                                                         \
        __builtin_va_start(rest, flags);                                                                                \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? __builtin_va_arg(rest, mode_t) : 0;                               \
        __builtin_va_end(rest);                                                                                         \
        if (control->create_errno && flags & (O_WRONLY | O_RDWR) && is_path_ours(path)) return fail(control->create_errno); \
        return REAL(name)(path, flags, mode);                                                                           \
    }

OPEN(open)
OPEN(open64)

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && control->realtime_ms) {
        now->tv_sec += control->realtime_ms / 1000;
    }
    return result;
}
