/* Lets user-mode Linux 6.1 run where the processor has more register state than it knows of (AMX).
 *
 * It writes a process's registers with PTRACE_SETREGSET and the 2,696 bytes that end with PKRU; newer host
 * kernels refuse a write that is not exactly as long as the processor's whole state. What it does not know
 * it cannot have changed: that part is read first and written back. Preloaded, compiled when tests run.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define NT_X86_XSTATE 0x202

/* The kernel has one thread; its stacks are too small for this. */
static char whole[65536];

long ptrace(enum __ptrace_request request, ...) {
    static long (*next)(int, ...);
    va_list arguments;
    va_start(arguments, request);
    long process = va_arg(arguments, long);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!next)
        next = dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (unsigned long)address == NT_X86_XSTATE) {
        struct iovec *given = data, all = {whole, sizeof whole};
        if (next(PTRACE_GETREGSET, process, address, &all) == 0 && all.iov_len > given->iov_len) {
            memcpy(whole, given->iov_base, given->iov_len);
            return next(PTRACE_SETREGSET, process, address, &all);
        }
    }
    return next(request, process, address, data);
}
