// Products of tiles (AMX): what they have in common wherever they are used. A tile has 16 rows of
// 64 bytes: 32 numbers in bf16, or 16 sums in f32.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LAMINA_HAS_TILES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <sys/syscall.h>
#include <unistd.h>

// What has tiles of bf16 has AVX512-BF16, too.
#define LAMINA_TILES \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")))
#endif

namespace lamina::detail {

/// All eight of them.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
/// What _tile_loadconfig() takes. Not on a stack: the compiler does not know how much that reads.
inline constexpr TileShapes tile_shapes;

#if defined(LAMINA_HAS_TILES)
/// The shapes of tiles, which the thread has while it computes.
struct Tiles {
  explicit Tiles(bool wanted = true) : wanted_(wanted) {
    if (wanted_) begin();
  }
  ~Tiles() {
    if (wanted_) end();
  }

 private:
  LAMINA_TILES static void begin() { _tile_loadconfig(&tile_shapes); }
  LAMINA_TILES static void end() { _tile_release(); }
  bool wanted_;
};
#endif

/// Whether there are tiles, and the system lets this process have them: it must ask.
inline bool may_use_tiles() {
#if defined(LAMINA_HAS_TILES)
  constexpr int ask = 0x1023, data_of_tiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool may = __builtin_cpu_supports("amx-tile") &&
                          __builtin_cpu_supports("amx-bf16") &&
                          syscall(SYS_arch_prctl, ask, data_of_tiles) == 0;
  return may;
#else
  return false;
#endif
}

}  // namespace lamina::detail
