// Parameter: a weight tensor of a layer with its gradient. Bucket: gradients that are summed over
// the ranks by one collective.
#pragma once

#include <lamina/comm/communicator.hpp>
#include <lamina/cost/blocks.hpp>
#include <lamina/kernels/backend.hpp>
#include <lamina/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

struct Parameter;

/// In which order a rank adds up what its turns bring: so many in a row, one after the other, and
/// the sums of such rows by halves, as ranks do (added_first()). What stands open meanwhile is
/// held, at one place for each level.
struct Turns {
  int count = 1, in_row = 1;

  /// What a turn brings is added to what is held at these places, one after the other; the sum goes
  /// to the place `to`, or stays where it is (-1) in the last turn.
  struct Sum {
    std::array<int, 32> held = {};
    int count = 0, to = -1;
  };
  Sum sum(int turn) const {
    const bool last = turn + 1 == count, row_ends = (turn + 1) % in_row == 0;
    const int above = in_row > 1;  // place 0 is for the row
    Sum s;
    if (turn % in_row > 0) s.held[std::size_t(s.count++)] = 0;
    s.to = 0;
    if (!last && !row_ends) return s;
    s.to = above;
    for (int rows = turn / in_row; rows > 0; rows /= 2, ++s.to) {
      if (rows % 2 == 1)
        s.held[std::size_t(s.count++)] = s.to;
      else if (!last)
        break;
    }
    if (last) s.to = -1;
    return s;
  }
  /// How many places that takes.
  int places() const {
    int most = 0;
    for (int t = 0; t < count; ++t) most = std::max(most, sum(t).to + 1);
    return most;
  }
};

/// Parameters of neighbouring layers, whose gradients are contiguous in memory in the order in
/// which backward finishes them. The last one to arrive starts the collective, on the buffer
/// itself: nothing is copied. Values and the optimizer's states lie likewise, and all are updated
/// by one call.
///
/// With a sharded optimizer each rank gets the sum of its own part of the bucket only, updates the
/// weights there, and the ranks exchange those.
struct Bucket {
  /// {1, elements, 1, 1} over all members, padding of layouts included, each of a dtype of its own.
  View gradients, values;
  Communicator ranks;  ///< that hold the same parameters
  std::vector<Parameter*> members;
  int step = 0;  ///< number of the step that completes it: that of its last member
  int arrived = 0;
  Pending sum, gathered, gathered_master;

  /// Where a batch runs in turns (micro-batches, workers): sums over those before this one.
  std::vector<View> held;
  std::unique_ptr<UnaryKernel> hold;
  std::unique_ptr<NaryKernel> add;
  int turn = 0, turns = 1;
  int in_row = 1;  ///< see Turns

  /// Its ranks compute with unlike back ends.
  bool unlike = false;
  bool sharded = false;
  View part;  ///< where the sum of this rank's part lands, if sharded

  DType state = DType::f32;  ///< Precision::states
  // Of the optimizer that was attached; made by it.
  std::vector<View> states;  ///< of own(); the last one are master weights, if it keeps those
  std::unique_ptr<UpdateKernel> update;  ///< of own()
  std::unique_ptr<SquaresKernel>
      squares;                 ///< of its members' gradients; with LARS, of weights, too
  std::uint64_t attached = 0;  ///< Optimizer::key(); 0 = none

  /// The elements that this rank updates: all, or with a sharded optimizer its part.
  Part own() const {
    const std::int64_t size = sharded ? part.shape.size() : gradients.shape.size();
    return {sharded ? ranks.rank() * size : 0, size};
  }
  View own_gradients() const { return sharded ? part : gradients; }
  View own_values() const {
    return values.at(std::size_t(own().begin) * size_of(values.dtype),
                     {{1, own().size, 1, 1}, values.dtype, {}});
  }
  /// Whether the optimizer updates weights in its own precision, of which the values are but
  /// rounded.
  bool keeps_master() const { return lamina::keeps_master(values.dtype, state); }
  /// Those weights, of own(); absent without an optimizer.
  View master() const { return keeps_master() && !states.empty() ? states.back() : View(); }
  void arrive(Stream& stream) {
    if (++arrived < int(members.size())) return;
    arrived = 0;
    if (turns > 1) add_up(stream);
    if (turn + 1 < turns) return;
    sum = sharded ? ranks.reduce_scatter(stream, Pass::weight_grad, gradients, part)
                  : ranks.all_reduce(stream, Pass::weight_grad, gradients);
  }
  /// The gradients of this turn join those of turns before, or the last time these join them.
  void add_up(Stream& stream) {
    const Turns::Sum joins = Turns{turns, in_row}.sum(turn);
    const View result = joins.to < 0 ? gradients : held[std::size_t(joins.to)];
    stream.under(Pass::weight_grad, [&] {
      if (joins.count == 0) hold->forward(stream, gradients, result);
      for (int i = 0; i < joins.count; ++i) {
        const View& before = held[std::size_t(joins.held[std::size_t(i)])];
        const View& y = i + 1 < joins.count ? gradients : result;
        const bool onto = y.data == before.data;
        const std::array both =
            onto ? std::array{before, gradients} : std::array{gradients, before};
        add->forward(stream, both, y);
      }
    });
  }
  /// The values of own() are new: the other ranks get them. Where all update all of them, each by
  /// its own arithmetic, they would drift apart: there those of the first rank count.
  void gather(Stream& stream) {
    if (sharded) gathered = ranks.all_gather(stream, Pass::update, own_values(), values);
    if (sharded || !unlike) return;
    gathered = ranks.broadcast(stream, Pass::update, values, 0);
    if (keeps_master()) gathered_master = ranks.broadcast(stream, Pass::update, master(), 0);
  }
  void wait_gathered(Stream& stream) { gathered.wait(stream), gathered_master.wait(stream); }
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
  bool frozen = false;  ///< `trained` is false because PlaceOptions::frozen says so
  bool decay = true;    ///< false for biases and batch norm: weight decay may skip them

  Communicator replicas = {};  ///< the ranks that hold the same values
  /// Of what is not trained: the ranks that have values of their own all the same, as the running
  /// statistics of local batch norm. What counts, in inference and in files, is their mean. By
  /// default all replicas.
  std::optional<Communicator> variants = {};
  /// `grad` is of the dtype Precision::gradients, whatever that of the form is.
  View value = {}, grad = {};
  std::vector<View> states = {};  ///< the optimizer's; see Bucket::states
  Bucket* bucket = nullptr;
  /// Its first element in the bucket, and how many it takes: up to the next one, or to the end.
  std::int64_t at = 0, room = 0;
  int reduced = 0;  ///< how often, in this turn: see reduce()

  /// Elements on this rank, padding apart.
  std::int64_t size() const { return form.shape.size(); }

  /// The local gradient is complete: starts the sum over the ranks as soon as its bucket is full.
  /// Backward calls it once for each parameter that is trained.
  void reduce(Stream& stream) {
    ++reduced;
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
    if (!bucket) return {0, elements};
    const Part mine = common(Part{at, elements}, bucket->own());
    return {mine.begin - at, mine.size};
  }
  /// Elements of its room that this rank updates.
  std::int64_t own_room() const {
    return bucket ? common(Part{at, room}, bucket->own()).size : room;
  }
  /// What an optimizer of so many states keeps for it, master weights included.
  std::size_t state_bytes(int number) const {
    if (!bucket) return 0;
    return std::size_t(number + bucket->keeps_master()) * std::size_t(own_room()) *
           size_of(bucket->state);
  }
  View own_value() const { return own_of(bucket->own_values()); }
  View own_grad() const { return own_of(bucket->own_gradients()); }
  /// The form of a buffer like its value, with elements of another type.
  Form form_of(DType t) const { return {form.shape, t, form.layout}; }
  /// own() of a buffer that has own() of the bucket: as the kernel wants it, where that is all.
  View own_of(const View& of) const {
    const std::int64_t first = at + own().begin - bucket->own().begin;
    const Form run{{1, own().size, 1, 1}, of.dtype, {}};
    return of.at(std::size_t(first) * size_of(of.dtype), bucket->sharded ? run : form_of(of.dtype));
  }
};

}  // namespace lamina
