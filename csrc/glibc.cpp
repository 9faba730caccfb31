// For a wheel that runs with an older glibc than that of the machine that builds it: what the
// standard library's headers use of newer ones. 0: there may be several threads.
extern "C" __attribute__((visibility("hidden"))) const char __libc_single_threaded = 0;
