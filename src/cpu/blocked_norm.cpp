// Batch normalisation on nchw, nChw<b>c and nhwc at the speed of memory. One loop serves every
// layout: a piece is read sixteen elements at a time, and element i belongs to channel i % block of
// the piece's block: 1, 4, 8 and 16 all divide 16; in nhwc to channel i % channels, and 16 divides
// these.
#include "cpu/blocked.hpp"
#include "cpu/norm_loops.hpp"

#include <cmath>

namespace lamina::detail {

BlockedNorm::BlockedNorm(const Form& x, int block, const Epilogue& epilogue)
    : beside_(block == 0),
      channels_(x.shape.c),
      block_(beside_ ? even_part(channels_) : block),
      blocks_((channels_ + block_ - 1) / block_),
      run_(beside_ ? x.shape.size() : x.shape.h * x.shape.w * block_),
      most_(beside_ ? pixels_of_piece(run_ / channels_) * channels_ : piece_size),
      per_run_((run_ + most_ - 1) / most_),
      pieces_((beside_ ? 1 : x.shape.n) * blocks_ * per_run_),
      coefficients_(std::size_t(4 * blocks_ * block_)),
      slope_(float(epilogue.slope())),
      partials_(Form{{pieces_, 2 * block_, 1, 1}, DType::f64, {}}) {
  inputs = {x};
  if (epilogue.add) inputs.push_back(x);
  output = x;
  if (epilogue.activation) signs = bits(beside_ ? run_ : pieces_ * signs_of_piece());
  algorithm = text("lamina:", x.layout.name());
  workspace = coefficients_.size() * sizeof(float) + partials_.bytes();
}

BlockedNorm::Piece BlockedNorm::piece(std::int64_t index) const {
  const std::int64_t run = index / per_run_, begin = index % per_run_ * most_;
  const std::int64_t channel = run % blocks_ * block_;
  const auto n = std::size_t(std::min(most_, run_ - begin));
  if (!beside_)
    return {index,
            std::size_t(run * run_ + begin),
            std::size_t(index * signs_of_piece()) / lanes,
            channel,
            {n, lanes, lanes}};
  const auto first = std::size_t(begin + channel);  // signs lie as the elements do
  return {index,
          first,
          first / lanes,
          channel,
          {n, std::size_t(channels_), std::size_t(width(channel))}};
}

std::int64_t BlockedNorm::width(std::int64_t channel) const {
  return beside_ ? std::min(block_, channels_ - channel) : block_;
}

std::int64_t BlockedNorm::signs_of_piece() const {
  return (std::min(run_, most_) + lanes - 1) / lanes * std::int64_t(lanes);
}

template <class Work>
void BlockedNorm::for_pieces(const Work& work) const {
  const std::int64_t elements = beside_ ? run_ : pieces_ / per_run_ * run_;
#pragma omp parallel for schedule(static) if (std::size_t(elements) > parallel_elements)
  for (std::int64_t i = 0; i < pieces_; ++i) work(piece(i));
}

// The coefficient row `which` of the piece's channels, in `room` where they fill no sixteen lanes.
const float* BlockedNorm::row(int which, const Piece& p, float* room) const {
  const float* from = coefficients_.data() + which * blocks_ * block_ + p.channel;
  if (block_ >= lanes) return from;
  for (int l = 0; l < lanes; ++l) room[l] = from[l % block_];
  return room;
}

// Two sums per channel: `sum` gives those of a piece; the pieces are added in their order.
template <class Lanes>
void BlockedNorm::reduce(const Lanes& sum, double* sums) {
  for_pieces([&](const Piece& p) {
    double* to = partials_.as<double>() + p.index * 2 * block_;
    if (block_ >= lanes) return sum(p, to);
    double both[2 * lanes];
    sum(p, both);
    for (std::int64_t c = 0; c < 2 * block_; ++c) {
      const double* from = both + c / block_ * lanes + c % block_;
      to[c] = 0;
      for (std::int64_t l = 0; l < lanes; l += block_) to[c] += from[l];
    }
  });
  const std::int64_t together = beside_ ? 128 : lanes;  // whose sums lie one behind the other
#pragma omp parallel for schedule(static) if (partials_.bytes() / sizeof(double) > \
                                              parallel_elements)
  for (std::int64_t c = 0; c < channels_; c += together) {
    add_up(c, std::min(c + together, channels_), sums);
  }
}

// Those of channels [first, end).
void BlockedNorm::add_up(std::int64_t first, std::int64_t end, double* sums) const {
  std::fill(sums + first, sums + end, 0.0);
  std::fill(sums + channels_ + first, sums + channels_ + end, 0.0);
  const std::int64_t step = blocks_ * per_run_;  // from a sample to the next one
  for (std::int64_t from = first; from < end;) {
    const std::int64_t channel = from / block_ * block_, to = std::min(channel + block_, end);
    const std::int64_t seconds = width(channel);
    for (std::int64_t sample = 0; sample < pieces_; sample += step) {
      const std::int64_t begin = sample + from / block_ * per_run_;
      for (std::int64_t i = begin; i < begin + per_run_; ++i) {
        const double* both = partials_.as<double>() + i * 2 * block_ - channel;
        for (std::int64_t c = from; c < to; ++c) {
          sums[c] += both[c];
          sums[channels_ + c] += both[seconds + c];
        }
      }
    }
    from = to;
  }
}

void BlockedNorm::statistics(Stream& stream, const View& x, const View& sums) {
  stream.run(Pass::forward, "statistics", [&] {
    visit(x.dtype, [&]<Stored T>(T) {
      const T* data = x.as<T>();
      const auto of = [&](const Piece& p, double* both) {
        norm_loops<T>(set_).moments(data + p.begin, p.of, both);
      };
      reduce(of, sums.as<double>());
    });
  });
}

void BlockedNorm::finish(Stream& stream, const View& sums, double count, double epsilon,
                         double momentum, const View& mean, const View& inv_std,
                         const View& running_mean, const View& running_var) {
  stream.run(Pass::forward, "finish", [&] {
    const double* s = sums.as<double>();
    const double unbiased = count > 1 ? count / (count - 1) : 1;
    for (std::int64_t c = 0; c < channels_; ++c) {
      const double m = s[c] / count;
      const double variance = std::max(s[channels_ + c] / count - m * m, 0.0);
      mean.as<double>()[c] = m;
      inv_std.as<double>()[c] = 1 / std::sqrt(variance + epsilon);
      if (running_mean) {
        float& r = running_mean.as<float>()[c];
        r = float(r + momentum * (m - r));
      }
      if (running_var) {
        float& r = running_var.as<float>()[c];
        r = float(r + momentum * (variance * unbiased - r));
      }
    }
  });
}

void BlockedNorm::running(Stream& stream, const View& running_mean, const View& running_var,
                          const View& sums) {
  stream.run(Pass::forward, "running", [&] {
    std::copy_n(running_mean.as<float>(), channels_, sums.as<double>());
    std::copy_n(running_var.as<float>(), channels_, sums.as<double>() + channels_);
  });
}

void BlockedNorm::from_running(Stream& stream, const View& sums, int variants, double epsilon,
                               const View& mean, const View& inv_std) {
  stream.run(Pass::forward, "from_running", [&] {
    const double* s = sums.as<double>();
    for (std::int64_t c = 0; c < channels_; ++c) {
      mean.as<double>()[c] = float(s[c] / variants);
      inv_std.as<double>()[c] = 1 / std::sqrt(float(s[channels_ + c] / variants) + epsilon);
    }
  });
}

void BlockedNorm::normalize(Stream& stream, const View& x, const View& mean, const View& inv_std,
                            const View& w, const View& b, const View& y, const View& added,
                            const View& passed) {
  stream.run(Pass::forward, "normalize", [&] {
    // Coefficients of channels beyond the last stay zero, and with them the padding of y.
    float* rows = coefficients_.data();
    const std::int64_t row = blocks_ * block_;
    for (std::int64_t c = 0; c < channels_; ++c) {
      rows[c] = float(mean.as<double>()[c]);
      rows[row + c] = float(inv_std.as<double>()[c] * (w ? w.as<float>()[c] : 1.0f));
      rows[2 * row + c] = b ? b.as<float>()[c] : 0.0f;
    }
    visit(x.dtype, [&]<Stored T>(T) { normalize<T>(x, y, added, passed); });
  });
}

// By the coefficients: means, factors and what is added.
template <Stored T>
void BlockedNorm::normalize(const View& x, const View& y, const View& added,
                            const View& passed) const {
  for_pieces([&](const Piece& p) {
    float rooms[3][lanes];
    const T* from = x.as<T>() + p.begin;
    T* to = y.as<T>() + p.begin;
    const bool past = past_caches((added ? 3 : 2) * y.bytes(), to);
    const T* more = added ? added.as<T>() + p.begin : nullptr;
    norm_loops<T>(set_).scale(from, row(0, p, rooms[0]), row(1, p, rooms[1]), row(2, p, rooms[2]),
                              more, slope_, to, signs_of(p, passed), p.of, past);
  });
}

void BlockedNorm::gradients(Stream& stream, const View& x, const View& mean, const View& inv_std,
                            const View& dy, const View& sums, const View& dw, const View& db,
                            const View& passed, const View& dadded, const View& more) {
  check(!more, "batch_norm: expected dy in one part");
  stream.run(Pass::weight_grad, "gradients", [&] {
    for (std::int64_t c = 0; c < channels_; ++c) coefficients_[c] = float(mean.as<double>()[c]);
    double* s = sums.as<double>();
    visit(x.dtype, [&]<Stored T>(T) { sum_gradients<T>(x, dy, passed, dadded, s); });
    for (std::int64_t c = 0; c < channels_; ++c) {
      s[channels_ + c] *= inv_std.as<double>()[c];
      if (db) db.as<float>()[c] = float(s[c]);
      if (dw) dw.as<float>()[c] = float(s[channels_ + c]);
    }
  });
}

// By the coefficients, which are means.
template <Stored T>
void BlockedNorm::sum_gradients(const View& x, const View& dy, const View& passed,
                                const View& dadded, double* sums) {
  reduce(
      [&](const Piece& p, double* both) {
        float room[lanes];
        T* kept = dadded ? dadded.as<T>() + p.begin : nullptr;
        norm_loops<T>(set_).gradient_moments(x.as<T>() + p.begin, signs_of(p, passed),
                                             dy.as<T>() + p.begin, slope_, row(0, p, room), p.of,
                                             kept, both);
      },
      sums);
}

void BlockedNorm::input_grad(Stream& stream, const View& x, const View& mean, const View& inv_std,
                             const View& w, const View& dy, const View& sums, double count,
                             const View& dx, const View& passed) {
  stream.run(Pass::input_grad, "input_grad", [&] {
    float* rows = coefficients_.data();
    const std::int64_t row = blocks_ * block_;
    const double* s = sums.as<double>();
    for (std::int64_t c = 0; c < channels_; ++c) {
      const double r = inv_std.as<double>()[c];
      const double a = r * (w ? double(w.as<float>()[c]) : 1.0);
      rows[c] = float(mean.as<double>()[c]);
      rows[row + c] = float(a);
      rows[2 * row + c] = float(-a * r * s[channels_ + c] / count);
      rows[3 * row + c] = float(-a * s[c] / count);
    }
    visit(x.dtype, [&]<Stored T>(T) { input_grad<T>(x, dy, passed, dx); });
  });
}

// By the coefficients: means, factors of dy and of x - mean, and what is added.
template <Stored T>
void BlockedNorm::input_grad(const View& x, const View& dy, const View& passed,
                             const View& dx) const {
  for_pieces([&](const Piece& p) {
    float rooms[4][lanes];
    T* to = dx.as<T>() + p.begin;
    const bool past = past_caches(3 * dx.bytes(), to);
    norm_loops<T>(set_).combine(x.as<T>() + p.begin, signs_of(p, passed), dy.as<T>() + p.begin,
                                slope_, row(0, p, rooms[0]), row(1, p, rooms[1]),
                                row(2, p, rooms[2]), row(3, p, rooms[3]), to, p.of, past);
  });
}

}  // namespace lamina::detail
