/* LD_PRELOAD: while the file named by FAULTY exists, row files fail with EIO. Its content is the name of the fault:
 *   lookup   reads of the training     merge   reads of the background thread     link   links to row files
 *   copy     links, and reads by which they are copied
 * io_uring is refused, so that every read comes here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef __NR_io_uring_setup
#define __NR_io_uring_setup 425
#endif

static __thread int in_background; /* the threads that write and merge, or save, lower their priority */

int setpriority(__priority_which_t which, id_t who, int priority) {
    in_background = 1;
    return ((int (*)(__priority_which_t, id_t, int))dlsym(RTLD_NEXT, "setpriority"))(which, who, priority);
}

static int fault_is(const char* name) {
    char read_name[16] = {0};
    const char* file = getenv("FAULTY");
    const int descriptor = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return 0;
    const ssize_t size = syscall(SYS_read, descriptor, read_name, sizeof read_name - 1);
    close(descriptor);
    return size > 0 && strcmp(read_name, name) == 0;
}

static int is_row_file(const char* path) {
    const char* end = strrchr(path, '.');
    return end && strncmp(end, ".gsr", 4) == 0;
}

static int holds_rows(int descriptor, const char* folder) {
    char link[64], path[4096] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    return readlink(link, path, sizeof path - 1) > 0 && is_row_file(path) && strstr(path, folder);
}

static ssize_t read_or_fail(const char* name, int descriptor, void* to, size_t size, off_t offset) {
    ssize_t (*real)(int, void*, size_t, off_t) = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, name);
    if (holds_rows(descriptor, "/rows/") && fault_is(in_background ? "merge" : "lookup")) return errno = EIO, -1;
    return real(descriptor, to, size, offset);
}

ssize_t pread(int descriptor, void* to, size_t size, off_t offset) { return read_or_fail("pread", descriptor, to, size, offset); }
ssize_t pread64(int descriptor, void* to, size_t size, off_t offset) { return read_or_fail("pread64", descriptor, to, size, offset); }

int link(const char* from, const char* to) {
    if (is_row_file(from) && (fault_is("link") || fault_is("copy"))) return errno = EIO, -1;
    return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "link"))(from, to);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
    if (is_row_file(from) && (fault_is("link") || fault_is("copy"))) return errno = EIO, -1;
    return ((int (*)(int, const char*, int, const char*, int))dlsym(RTLD_NEXT, "linkat"))(from_folder, from, to_folder, to, flags);
}

ssize_t sendfile(int out, int in, off_t* offset, size_t size) {
    if (holds_rows(in, "/") && fault_is("copy")) return errno = EIO, -1;
    return ((ssize_t(*)(int, int, off_t*, size_t))dlsym(RTLD_NEXT, "sendfile"))(out, in, offset, size);
}

ssize_t sendfile64(int out, int in, off_t* offset, size_t size) {
    if (holds_rows(in, "/") && fault_is("copy")) return errno = EIO, -1;
    return ((ssize_t(*)(int, int, off_t*, size_t))dlsym(RTLD_NEXT, "sendfile64"))(out, in, offset, size);
}

ssize_t read(int descriptor, void* to, size_t size) {
    if (holds_rows(descriptor, "/") && fault_is("copy")) return errno = EIO, -1;
    return ((ssize_t(*)(int, void*, size_t))dlsym(RTLD_NEXT, "read"))(descriptor, to, size);
}

long syscall(long number, ...) {
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; ++i) arguments[i] = va_arg(list, long);
    va_end(list);
    if (number == __NR_io_uring_setup) return errno = ENOSYS, -1;
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
