// Parameter: a weight tensor of a layer with its gradient. Bucket: gradients that are summed over
// the ranks by one collective.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/cost/blocks.hpp>
#include <lamina/kernels/backend.hpp>
#include <lamina/tensor/tensor.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

struct Parameter;

/// Gradients of neighbouring layers, contiguous in memory in the order in which backward finishes
/// them. The last one to arrive starts the collective, on the buffer itself: nothing is copied.
///
/// With a sharded optimizer each rank gets the sum of its own part of the bucket only, updates the
/// weights there, and the ranks exchange those: the values of the members lie like their gradients.
struct Bucket {
  View gradients;      ///< {1, elements, 1, 1} over all members, padding of their layouts included
  Communicator ranks;  ///< that hold the same parameters
  std::vector<Parameter*> members;
  int arrived = 0, updated = 0;
  Pending sum, gathered;

  /// Where a batch runs in micro-batches: the sum over those before this one.
  View held;
  std::unique_ptr<UnaryKernel> hold;
  std::unique_ptr<NaryKernel> add;
  int micro_batch = 0, micro_batches = 1;

  bool sharded = false;
  View values, part;         ///< of the members; this rank's part of the sum
  std::vector<View> states;  ///< the optimizer's, for that part

  /// Elements of this rank's part.
  Part own() const {
    const std::int64_t size = part.shape.size();
    return {ranks.rank() * size, size};
  }
  void arrive(Stream& stream) {
    if (++arrived < int(members.size())) return;
    arrived = 0;
    if (micro_batches > 1) add_up(stream);
    if (micro_batch + 1 < micro_batches) return;
    sum = sharded ? ranks.reduce_scatter(stream, Pass::weight_grad, gradients, part)
                  : ranks.all_reduce(stream, Pass::weight_grad, gradients);
  }
  /// This micro-batch's gradients and those before it: into `held`, or the last time where they
  /// are.
  void add_up(Stream& stream) {
    const bool last = micro_batch + 1 == micro_batches;
    const std::array both = last ? std::array{gradients, held} : std::array{held, gradients};
    stream.enter(stream.layer(), stream.layer_name(), Pass::weight_grad);
    if (micro_batch == 0)
      hold->forward(stream, gradients, held);
    else
      add->forward(stream, both, both[0]);
    stream.enter(stream.layer(), stream.layer_name());
  }
  /// A member's weights are new.
  void update(Stream& stream) {
    if (!sharded || ++updated < int(members.size())) return;
    updated = 0;
    const View mine = values.at(std::size_t(own().begin) * size_of(part.dtype), part);
    gathered = ranks.all_gather(stream, Pass::update, mine, values);
  }
};

/// How a parameter starts: uniform in +-bound, normal, or constant; drawn from the seed and its
/// name.
struct Initial {
  enum class Kind { constant, uniform, normal };
  Kind kind = Kind::constant;
  double value = 0;  ///< the constant, the bound or the standard deviation
};

/// What a layer keeps between steps. The layer describes it when it is placed; the network gives it
/// buffers. Running statistics are parameters that are not trained: they have no gradient.
struct Parameter {
  std::string name = {};                ///< "weight"; unique within its layer
  std::vector<std::int64_t> dims = {};  ///< as files hold it: {64, 3, 7, 7}, {1000, 512}, {64}
  Form form = {};                       ///< of this rank's block, as the kernel wants it
  Shape whole = {};                     ///< of the parameter across all ranks; {k, c, r, s}
  Box block = {};                       ///< of `whole`, that this rank holds; empty = all of it
  Initial initial = {};
  bool trained = true;
  bool decay = true;  ///< false for biases and batch norm: weight decay may skip them

  Communicator replicas = {};  ///< the ranks that hold the same values
  /// Of what is not trained: the ranks that have values of their own all the same, as the running
  /// statistics of local batch norm. What counts, in inference and in files, is their mean. By
  /// default all replicas.
  std::optional<Communicator> variants = {};
  View value = {}, grad = {};
  std::vector<View> states = {};  ///< the optimizer's
  Bucket* bucket = nullptr;
  /// Its first element in the bucket, and how many it takes: up to the next one, or to the end.
  std::int64_t at = 0, room = 0;

  /// Elements on this rank, padding apart.
  std::int64_t size() const { return form.shape.size(); }

  /// The local gradient is complete: starts the sum over the ranks as soon as its bucket is full.
  void reduce(Stream& stream) {
    if (bucket) bucket->arrive(stream);
  }
  /// Returns when `grad` is the sum over the ranks; with a sharded optimizer own_grad() is.
  void wait(Stream& stream) {
    if (bucket) bucket->sum.wait(stream);
  }

  // What this rank updates: all of it, or with a sharded optimizer what lies in its part of the
  // bucket. Elements are those of the buffer, padding included.

  Part own() const {
    const auto elements = std::int64_t(form.bytes() / size_of(form.dtype));
    if (!bucket || !bucket->sharded) return {0, elements};
    const Part mine = common(Part{at, elements}, bucket->own());
    return {mine.begin - at, mine.size};
  }
  /// What a state of the optimizer takes for it: its room, or what of that this rank updates.
  std::size_t state_bytes() const {
    const bool in_parts = bucket && bucket->sharded;
    return std::size_t(in_parts ? common(Part{at, room}, bucket->own()).size : room) *
           size_of(form.dtype);
  }
  View own_value() const { return bucket && bucket->sharded ? run(value, own().begin) : value; }
  View own_grad() const {
    if (!bucket || !bucket->sharded) return grad;
    return run(bucket->part, at + own().begin - bucket->own().begin);
  }
  /// own().size elements of a buffer.
  View run(const View& of, std::int64_t first) const {
    return of.at(std::size_t(first) * size_of(form.dtype),
                 {{1, own().size, 1, 1}, form.dtype, {}});
  }
};

}  // namespace lamina
