// flush_denormals: numbers too small for full precision as zero.
#pragma once

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace lamina {

/// From now on the calling thread, and each that it starts, takes numbers too small for full
/// precision (below 1.2e-38 in f32, 2.2e-308 in f64) for zero where it computes with them, and
/// makes zero of them; what only copies or rounds bits keeps them. Processors of x86 take up to a
/// hundred times as long for them, and gradients come there once a loss is zero, as momentum does
/// where there is no gradient any more. Others: nothing is done.
inline void flush_denormals() {
#ifdef __SSE2__
  _mm_setcsr(_mm_getcsr() | 0x8040);  // what comes out, what goes in
#endif
}

}  // namespace lamina
