// The CPU back end's own kernels, on raw buffers of f32: elementwise loops over whole buffers,
// padding included (zero stays zero in each), and batch normalisation on nchw and nChw<b>c.
#pragma once

#include <lamina/kernels/backend.hpp>
#include <lamina/kernels/dropout_mask.hpp>

namespace lamina::detail {

/// y = x, or slope * x below zero. x == y is allowed, as everywhere here.
void leaky_relu(const float* x, float slope, float* y, std::size_t n);
/// dx = dy, or slope * dy where `reference` (x or y: they agree in sign) is not positive.
void leaky_relu_grad(const float* reference, const float* dy, float slope, float* dx,
                     std::size_t n);
/// y = x1 + x2
void add(const float* x1, const float* x2, float* y, std::size_t n);
void copy(const float* x, float* y, std::size_t n);

/// y = scale * x where the mask keeps the element, else 0; x and y are plain, block `box` of
/// `whole`.
void dropout(const DropoutMask&, float scale, const Shape& whole, const Box& box, const float* x,
             float* y);

/// One optimizer step over n elements in one pass over memory; `states` as in UpdateRule.
void update(const UpdateRule&, const UpdateStep&, float* w, const float* dw, float* const* states,
            std::size_t n);

/// Sum of squares in f64; the order of additions depends on n alone.
double squared_norm(const float* x, std::size_t n);

/// `block` channels lie together: 1 is plain nchw, 16 is nChw16c. The result of each sum depends on
/// shape and block alone, never on the number of threads.
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
                 const View& b, const View& y, const View& added) override;
  void gradients(Stream&, const View& x, const View& mean, const View& inv_std, const View& dy,
                 const View& sums, const View& dw, const View& db, const View& y,
                 const View& dadded) override;
  void input_grad(Stream&, const View& x, const View& mean, const View& inv_std, const View& w,
                  const View& dy, const View& sums, double count, const View& dx,
                  const View& y) override;

 private:
  // A piece is a run of at most piece_size elements of the same `block` channels of one sample.
  static constexpr std::int64_t piece_size = 16384;  // a multiple of the 16 lanes

  struct Piece {
    std::size_t begin, size;  // in elements
    std::int64_t channel;     // the first of the block
  };
  Piece piece(std::int64_t index) const;
  template <class Work>
  void for_pieces(const Work&) const;
  template <class Lanes>
  void reduce(const Lanes&, double* sums);
  void spread(int which, std::int64_t channel, float* lanes) const;

  std::int64_t channels_, block_, blocks_, run_, per_block_, pieces_;
  std::vector<float> coefficients_;  // three rows of padded channels, filled anew by each call
  float slope_;                      // of the epilogue's activation; 1 = none
  std::vector<double> partials_;     // of each piece: `block` sums, then `block` sums more
};

}  // namespace lamina::detail
