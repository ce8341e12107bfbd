// LAMINA_INLINE stands before what implementation headers define (impl/ beside the interface): they
// are compiled once, into the library, or with LAMINA_HEADER_ONLY into every program.
#pragma once

#ifdef LAMINA_HEADER_ONLY
#define LAMINA_INLINE inline
#else
#define LAMINA_INLINE
#endif
