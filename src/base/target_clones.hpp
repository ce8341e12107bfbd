// LAMINA_SIMD: one function compiled for several instruction sets.
#pragma once

/// Compiles a function three times, for AVX-512, AVX2 and any x86-64, and picks one when the
/// program starts, so that one binary runs everywhere. Sanitizers run before the choice can be
/// made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LAMINA_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LAMINA_SIMD
#endif
