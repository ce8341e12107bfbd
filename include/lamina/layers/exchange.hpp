// Exchange: moves blocks of a value between ranks: only the bytes that must move. Under halos and
// reshards alike.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/cost/blocks.hpp>
#include <lamina/kernels/backend.hpp>

#include <vector>

namespace lamina {

/// wanted = the sum of all different blocks of `held` that overlap it, each from
/// the nearest copy (cost/blocks.hpp). Values lie plain. Everything is decided when it is made;
/// running it allocates nothing.
class Exchange {
 public:
  Exchange() = default;
  /// The ranks of `held` and `wanted` are those of `ranks`, which all take part. The values lie
  /// where those of the back end do, which must outlive this; on the host without one.
  Exchange(const Blocks& held, const Blocks& wanted, DType dtype, Communicator ranks,
           const Backend* backend = nullptr);

  /// Starts to move this rank's block `held` and those that make up `wanted`; each is absent where
  /// the rank has none. Both must be left alone until finish(), which completes `wanted`. Elements
  /// that nobody holds become zero.
  void start(Stream& stream, Pass pass, const View& held, const View& wanted);
  void finish(Stream& stream, Pass pass, const View& held, const View& wanted);
  /// Between the two, where apart(): makes `wanted` readable until finish(), with what this rank
  /// holds itself, and zero elsewhere.
  void preview(Stream& stream, Pass pass, const View& held, const View& wanted);
  void run(Stream& stream, Pass pass, const View& held, const View& wanted) {
    start(stream, pass, held, wanted), finish(stream, pass, held, wanted);
  }

  /// Whether any rank gets anything from another one.
  bool moves() const { return !rounds_.empty(); }
  /// Whether what comes from others waits in a buffer until finish().
  bool apart() const;
  /// What it is to a rank: what waits there, in elements, to go out and to come in, and what
  /// decides how: from how many ranks it gets something, itself included, how many of the others'
  /// blocks go straight to their place, and whether blocks add up.
  struct Load {
    std::int64_t out = 0, in = 0;
    int pieces = 0, direct = 0;
    bool adds = false;
    auto operator<=>(const Load&) const = default;
  };
  /// Of each rank, without making any exchange.
  static std::vector<Load> loads(const Blocks& held, const Blocks& wanted);
  /// Bytes that the rank which sends the most sends: what a cost is counted with.
  static double most_sent(const Blocks& held, const Blocks& wanted, DType dtype);
  /// Bytes of its buffers.
  std::size_t workspace() const { return buffer_.bytes(); }

 private:
  struct Piece {
    Box box;
    int peer = -1;
    bool direct = false;     ///< lies in one run in the block: goes from or to where it is
    std::int64_t first = 0;  ///< where so: its first element in the block
    View packed = {};        ///< otherwise: where it waits
  };
  struct Round {
    int to = -1, from = -1;  ///< indices into out_ and in_
  };

  /// moves_, recorded as `what`; nothing where there are none.
  void move(Stream& stream, Pass pass, const char* what);

  DType dtype_ = DType::f32;
  Communicator ranks_;
  const Backend* backend_ = nullptr;
  Box held_, wanted_;
  std::vector<Piece> out_, in_;
  std::vector<Round> rounds_;
  std::vector<BoxMove> moves_;  ///< has room for all
  Tensor buffer_;
  std::vector<Pending> pending_;  ///< behind the buffer: when it goes, it waits for what is there
  bool previewed_ = false;
  bool adds_ = false;  ///< blocks overlap, or leave gaps: start from zero
};

}  // namespace lamina
