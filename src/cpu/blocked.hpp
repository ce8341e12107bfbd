// The CPU back end's own kernels, on raw buffers of f32 or bf16: elementwise loops over whole
// buffers, padding included (zero stays zero in each), and batch normalisation on nchw, nChw<b>c
// and nhwc.
#pragma once

#include "cpu/norm_loops.hpp"
#include "cpu/simd.hpp"

#include <lamina/kernels/backend.hpp>
#include <lamina/kernels/dropout_mask.hpp>
#include <lamina/kernels/instruction_set.hpp>

namespace lamina::detail {

/// y = x, or slope * x below zero. x == y is allowed, as everywhere here but in convert().
template <Stored T>
void leaky_relu(const T* x, float slope, T* y, std::size_t n);
/// dx = dy, or slope * dy where `reference` (x or y: they agree in sign) is not positive.
template <Stored T>
void leaky_relu_grad(const T* reference, const T* dy, float slope, T* dx, std::size_t n);
/// y = what an epilogue makes of it: with `added`, unless that is null, and a slope below zero.
template <Stored T>
void finish(T* y, const T* added, float slope, std::size_t n);
/// y = the sum of xs, rounded once.
template <Stored T>
void add(std::span<const View> xs, T* y, std::size_t n);
/// y = x, rounded to nearest.
template <Stored From, Stored To>
void convert(const From* x, To* y, std::size_t n);
void copy(const void* x, void* y, std::size_t bytes);

/// y = scale * x where the mask keeps the element, else 0; x and y are plain, block `box` of
/// `whole`.
template <Stored T>
void dropout(const DropoutMask&, float scale, const Shape& whole, const Box& box, const T* x, T* y);

/// One optimizer step over n elements in one pass over memory; `states` as in UpdateRule. Where
/// `rounded` is, w goes there rounded to nearest.
void update(const UpdateRule&, const UpdateStep&, float* w, const float* dw, float* const* states,
            BF16* rounded, std::size_t n);

/// Sum of squares in f64; the order of additions depends on n alone.
template <Stored T>
double squared_norm(const T* x, std::size_t n);

/// Maximum pooling of bf16 that lies n-h-w-c, whatever the layouts of x and y are; of at most 256
/// places.
std::unique_ptr<UnaryKernel> max_pool_beside(const PoolGeometry&, const Form& x, const Form& y);

/// `block` channels lie together: 1 is plain nchw, 16 is nChw16c, and 0 is nhwc of a multiple of 16
/// channels. The result of each sum depends on shape and block alone, never on the number of
/// threads.
class BlockedNorm final : public NormKernel {
 public:
  BlockedNorm(const Form& x, int block, const Epilogue& epilogue);

  void statistics(Stream&, const View& x, const View& sums) override;
  void finish(Stream&, const View& sums, double count, double epsilon, double momentum,
              const View& mean, const View& inv_std, const View& running_mean,
              const View& running_var) override;
  void running(Stream&, const View& running_mean, const View& running_var,
               const View& sums) override;
  void from_running(Stream&, const View& sums, int variants, double epsilon, const View& mean,
                    const View& inv_std) override;
  void normalize(Stream&, const View& x, const View& mean, const View& inv_std, const View& w,
                 const View& b, const View& y, const View& added, const View& passed) override;
  void gradients(Stream&, const View& x, const View& mean, const View& inv_std, const View& dy,
                 const View& sums, const View& dw, const View& db, const View& passed,
                 const View& dadded, const View& /*more*/) override;
  void input_grad(Stream&, const View& x, const View& mean, const View& inv_std, const View& w,
                  const View& dy, const View& sums, double count, const View& dx,
                  const View& passed) override;

 private:
  template <Stored T>
  void normalize(const View& x, const View& y, const View& added, const View& passed) const;
  template <Stored T>
  void sum_gradients(const View& x, const View& dy, const View& passed, const View& dadded,
                     double* sums);
  template <Stored T>
  void input_grad(const View& x, const View& dy, const View& passed, const View& dx) const;

  // A piece is a run of the same `block` channels of one sample, of at most piece_size elements; in
  // nhwc of pixels of any samples, where a block is as many channels as loops take at a time. Each
  // has sums of all of these, which are written and read once more: so there the pieces are few.
  static constexpr std::int64_t piece_size = 16384;  // a multiple of the 16 lanes
  static std::int64_t pixels_of_piece(std::int64_t all) {
    return std::max<std::int64_t>(64, (all + 127) / 128);
  }

  /// Parts that are alike, so that threads have as much to do.
  static std::int64_t even_part(std::int64_t channels) {
    const std::int64_t parts = (channels + most_channels - 1) / most_channels;
    return (channels / lanes + parts - 1) / parts * lanes;
  }

  struct Piece {
    std::int64_t index;
    std::size_t begin;     // its first element
    std::size_t signs;     // and the first Signs
    std::int64_t channel;  // the first of the block
    Stretch of;
  };
  Piece piece(std::int64_t index) const;
  std::int64_t width(std::int64_t channel) const;  // of the block that begins there
  std::int64_t signs_of_piece() const;             // in elements: whole vectors
  static Signs* signs_of(const Piece& p, const View& passed) {
    return passed ? static_cast<Signs*>(passed.data) + p.signs : nullptr;
  }
  template <class Work>
  void for_pieces(const Work&) const;
  template <class Lanes>
  void reduce(const Lanes&, double* sums);
  void add_up(std::int64_t first, std::int64_t end, double* sums) const;
  const float* row(int which, const Piece&, float* room) const;

  bool beside_;  // nhwc
  std::int64_t channels_, block_, blocks_;
  // Elements that pieces cut, how many they are at most, how many pieces that makes, and all.
  std::int64_t run_, most_, per_run_, pieces_;
  std::vector<float> coefficients_;  // four rows of padded channels, filled anew by each call
  InstructionSet set_ = instruction_set();
  float slope_;      // of the epilogue's activation; 1 = none
  Tensor partials_;  // of each piece: sums of its channels, then as many more
};

}  // namespace lamina::detail
