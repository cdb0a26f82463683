/* Stands between a program and the C library, and lets calls fail, or the program die, where a test wants it.
 *
 * The test and the program share one page (FAULTS_PAGE names its file), so faults begin and end while the program
 * runs.  Counted are calls on files below one directory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { CHANGES = 1, READS = 2, SYNCS = 4 };

struct control {
    int32_t armed;   /* which calls are meant: CHANGES, READS, SYNCS */
    int32_t error;   /* what they fail with; 0: the program is killed instead */
    int32_t first;   /* the first of them that does */
    int32_t last;    /* and the last one */
    int32_t count;   /* so many were met */
    int32_t block;   /* only what is read at this block of 4 KiB; 0: whatever it is */
    int64_t offset;  /* seconds by which the wall clock is wrong */
    char below[1024];
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_PAGE");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (page != MAP_FAILED)
        control = page;
}

static int below(int directory, const char *path) {
    char whole[PATH_MAX], link[64];
    size_t length = strlen(control->below);
    if (path && path[0] == '/')
        return strncmp(path, control->below, length) == 0;
    if (directory == AT_FDCWD)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t got = readlink(link, whole, sizeof whole - 1);
    if (got < 0)
        return 0;
    whole[got] = 0;
    return strncmp(whole, control->below, length) == 0;
}

/* Nonzero if the call must fail; errno is set. */
static int meet_at(int kind, int directory, const char *path, off64_t at) {
    if (!control || !(control->armed & kind) || (control->block && at / 4096 != control->block))
        return 0;
    int before = errno;
    int ours = below(directory, path);
    errno = before;
    if (!ours)
        return 0;
    int number = __sync_add_and_fetch(&control->count, 1);
    if (number < control->first || number > control->last)
        return 0;
    if (!control->error) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    errno = control->error;
    return 1;
}

static int meet(int kind, int directory, const char *path) { return meet_at(kind, directory, path, -1); }

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int opening(int flags) { return flags & (O_CREAT | O_TRUNC) || (flags & O_ACCMODE) != O_RDONLY ? CHANGES : READS; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(name); return meet(opening(flags), AT_FDCWD, path) ? -1 : real(path, flags, mode); }
#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(name); return meet(opening(flags), directory, path) ? -1 : real(directory, path, flags, mode); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* openat2 has no function of its own. */
long syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long), d = va_arg(rest, long);
    long e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    REAL(syscall);
    if (number == 437 && meet(READS, (int)a, (const char *)b))
        return -1;
    return real(number, a, b, c, d, e, f);
}

int unlink(const char *path) { REAL(unlink); return meet(CHANGES, AT_FDCWD, path) ? -1 : real(path); }
int rmdir(const char *path) { REAL(rmdir); return meet(CHANGES, AT_FDCWD, path) ? -1 : real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return meet(CHANGES, AT_FDCWD, path) ? -1 : real(path, mode); }
int rename(const char *from, const char *to) { REAL(rename); return meet(CHANGES, AT_FDCWD, to) ? -1 : real(from, to); }
int link(const char *from, const char *to) { REAL(link); return meet(CHANGES, AT_FDCWD, to) ? -1 : real(from, to); }
int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat); return meet(CHANGES, directory, path) ? -1 : real(directory, path, flags); }
int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat); return meet(CHANGES, directory, path) ? -1 : real(directory, path, mode); }
int renameat(int there, const char *from, int directory, const char *to) {
    REAL(renameat); return meet(CHANGES, directory, to) ? -1 : real(there, from, directory, to); }
int linkat(int there, const char *from, int directory, const char *to, int flags) {
    REAL(linkat); return meet(CHANGES, directory, to) ? -1 : real(there, from, directory, to, flags); }

ssize_t write(int file, const void *data, size_t size) {
    REAL(write); return meet(CHANGES, file, NULL) ? -1 : real(file, data, size); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    REAL(pwrite); return meet(CHANGES, file, NULL) ? -1 : real(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64); return meet(CHANGES, file, NULL) ? -1 : real(file, data, size, at); }
int fsync(int file) { REAL(fsync); return meet(CHANGES | SYNCS, file, NULL) ? -1 : real(file); }
int syncfs(int file) { REAL(syncfs); return meet(CHANGES | SYNCS, file, NULL) ? -1 : real(file); }
int fdatasync(int file) { REAL(fdatasync); return meet(CHANGES | SYNCS, file, NULL) ? -1 : real(file); }
int ftruncate(int file, off_t size) { REAL(ftruncate); return meet(CHANGES, file, NULL) ? -1 : real(file, size); }
int ftruncate64(int file, off64_t size) { REAL(ftruncate64); return meet(CHANGES, file, NULL) ? -1 : real(file, size); }
int fchmod(int file, mode_t mode) { REAL(fchmod); return meet(CHANGES, file, NULL) ? -1 : real(file, mode); }

ssize_t read(int file, void *data, size_t size) {
    REAL(read); return meet(READS, file, NULL) ? -1 : real(file, data, size); }
ssize_t pread(int file, void *data, size_t size, off_t at) {
    REAL(pread); return meet_at(READS, file, NULL, at) ? -1 : real(file, data, size, at); }
ssize_t pread64(int file, void *data, size_t size, off64_t at) {
    REAL(pread64); return meet_at(READS, file, NULL, at) ? -1 : real(file, data, size, at); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && control && clock == CLOCK_REALTIME)
        now->tv_sec += control->offset;
    return failed;
}
