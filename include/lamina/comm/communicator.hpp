// Communicator: a group of ranks, as a value.
#pragma once

#include <lamina/base/random.hpp>
#include <lamina/comm/pending.hpp>
#include <lamina/tensor/tensor.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace lamina {

/// Cheap to copy. A default one is one rank: each collective is then a no-op (or a local copy) and
/// returns a finished Pending, so that layers need no `if (size > 1)`.
///
/// Collectives on views work on the raw buffer, and must be started in the same order, with the
/// same counts and types, on all ranks of the group. A view that is not plain is refused unless
/// alike() has shown that it lies alike on all of them: else what is added up would not belong
/// together. The buffers must stay alive and untouched until the Pending is done. All-reduce leaves
/// the same bits on all ranks.
class Communicator {
 public:
  Communicator() = default;
  /// Without a queue its caller's thread does what it is asked.
  Communicator(std::shared_ptr<Transport> group, std::shared_ptr<CommQueue> queue)
      : group_(std::move(group)), queue_(std::move(queue)) {
    if (group_) rank_ = group_->rank(), size_ = group_->size();
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Whether both are the same object's copies: not merely the same ranks.
  bool same(const Communicator& other) const { return group_ == other.group_; }
  /// Whether its ranks are not there, so that what is placed on them never runs.
  bool imagined() const { return group_ && group_->imagined(); }

  /// What carries the collectives, in words: "shared memory"; "nothing" for one rank.
  std::string carrier() const { return group_ ? group_->carrier() : "nothing"; }
  /// Whether what carries them reaches into that memory by itself: collectives there do not go by
  /// way of the host.
  bool reach(const MemorySpace& space) const { return group_ && group_->reaches(space); }
  /// The same group over MPI alone, each collective one blocking call of it: to compare with. The
  /// group itself where there is no MPI beneath.
  Communicator plain() const {
    auto below = group_ ? group_->plain() : nullptr;
    return below ? Communicator(std::move(below), queue_) : *this;
  }

  /// data = the sum (max, min) of all ranks' data, in place.
  Pending all_reduce(Stream& stream, Pass pass, const View& data,
                     ReduceOp reduce = ReduceOp::sum) const {
    return start(stream, pass, Collective::all_reduce, data, data, data, reduce);
  }

  /// part = this rank's part of the sum over ranks of `whole`, which is `size()` parts in a row.
  Pending reduce_scatter(Stream& stream, Pass pass, const View& whole, const View& part,
                         ReduceOp reduce = ReduceOp::sum) const {
    check_parts(Collective::reduce_scatter, stream, part, whole);
    return start(stream, pass, Collective::reduce_scatter, whole, part, part, reduce);
  }

  /// whole = all ranks' `part`s in a row, by rank. `part` may lie at its own place in `whole`.
  Pending all_gather(Stream& stream, Pass pass, const View& part, const View& whole) const {
    check_parts(Collective::all_gather, stream, part, whole);
    return start(stream, pass, Collective::all_gather, part, whole, part);
  }

  /// data = rank `root`'s data.
  Pending broadcast(Stream& stream, Pass pass, const View& data, int root) const {
    check_rank(root, "broadcast");
    return start(stream, pass, Collective::broadcast, data, data, data, ReduceOp::sum, root);
  }

  /// Both views are `size()` parts in a row: part j goes to rank j, and part j of `to` is from it.
  Pending all_to_all(Stream& stream, Pass pass, const View& from, const View& to) const {
    check(from.bytes() == to.bytes() &&
              from.bytes() % (size_of(from.dtype) * std::size_t(size_)) == 0,
          "layer ", stream.layer(), ": all_to_all needs two equal buffers of ", size_,
          " parts, got ", from.bytes(), " and ", to.bytes(), " bytes");
    return start(stream, pass, Collective::all_to_all, from, to, from, ReduceOp::sum, -1,
                 std::size_t(size_));
  }

  /// Sends `out` to rank `to` and receives `in` from rank `from`; -1 = nobody. The two may differ
  /// in size. All ranks of the group take part, those without a message, too: their views are
  /// absent, but in the memory where the others' are.
  Pending exchange(Stream& stream, Pass pass, const View& out, int to, const View& in,
                   int from) const {
    if (to >= 0) check_rank(to, "exchange");
    if (from >= 0) check_rank(from, "exchange");
    const View& known = to >= 0 ? out : in;
    Operation op;
    op.collective = Collective::halo;
    op.dtype = known.dtype;
    op.pass = stream.pass(pass);
    op.layer = stream.layer(), op.layer_name = stream.layer_name();
    op.to = to, op.from = from;
    op.in = out.data, op.out = in.data, op.space = space_of(stream, out, in);
    op.count = to >= 0 ? out.bytes() / size_of(op.dtype) : 0;
    op.received = from >= 0 ? in.bytes() / size_of(op.dtype) : 0;
    return start(stream, op, true);
  }

  /// Zeros in `space`, where this group's collectives, and those of groups made from it, are
  /// fastest: ranks of one node sum such tensors on the host in place, and NCCL knows of those on
  /// GPUs. Collective and blocking, meant for set-up; forms and spaces may differ between ranks.
  /// What is not touched takes no memory of the host before somebody writes there.
  Tensor tensor(Form form, MemorySpace& space = host_memory(), bool touched = true) const {
    const std::size_t bytes = form.bytes();
    std::shared_ptr<void> memory;
    auto work = [&] { memory = group_->allocate(space, bytes, touched); };
    if (size() > 1) call(work);
    if (bytes == 0) return Tensor(std::move(form), space);
    if (!memory && space.on_host() && !touched) memory = untouched(bytes);
    return Tensor(std::move(form), space, std::move(memory));
  }

  /// These ranks of the group, in that order, this one among them; each of them must say the same.
  /// None: this rank alone. Collective over the group and blocking: meant for set-up. Throws Error
  /// where the members do not agree.
  Communicator group(const std::vector<int>& members) const {
    const auto* bytes = reinterpret_cast<const char*>(members.data());
    const auto said = all_gather_value(key_of({bytes, members.size() * sizeof(int)}));
    for (const int r : members) {
      check_rank(r, "group");
      check(said[std::size_t(r)] == said[std::size_t(rank_)], "group: rank ", rank_, " and rank ",
            r, " do not say the same members");
    }
    check(members.empty() || std::count(members.begin(), members.end(), rank_) == 1, "group: rank ",
          rank_, " is not one of the members, or more than once");
    if (!group_) return *this;
    std::shared_ptr<Transport> part;
    auto work = [&] { part = group_->group(members); };
    call(work);
    return Communicator(std::move(part), queue_);
  }

  /// The same ranks, carried by what make(transport) puts on top of what carries them now: NCCL,
  /// for example. Collective and blocking: meant for set-up.
  template <class Make>
  Communicator over(const Make& make) const {
    if (!group_) return *this;
    std::shared_ptr<Transport> top;
    auto work = [&] { top = make(group_); };
    call(work);
    if (queue_) queue_->watch(top);
    return Communicator(std::move(top), queue_);
  }

  /// Whether all ranks pass a form that lies alike, so that raw buffers of it may be summed. From
  /// then on collectives take them. Collective and blocking: meant for set-up.
  bool alike(const Form& form) const {
    const std::uint64_t mine = form.fingerprint();
    for (const std::uint64_t theirs : all_gather_value(mine))
      if (theirs != mine || mine == 0) return size_ == 1;
    if (group_) group_->note_alike(mine);
    return true;
  }

  /// The same ranks, whose sums are taken in one order whatever carries them: that of
  /// added_first(). Only NCCL adds in an order of its own.
  Communicator ordered() const {
    Communicator c = *this;
    c.ordered_ = true;
    return c;
  }

  /// The same ranks, whose sums of f32 go from node to node as bf16: half of the bytes. What a node
  /// sends of its own sum is rounded once; these are added up in f32; and what all-reduce sends of
  /// that is rounded once more. Within a node, and where the carrier cannot (NCCL), nothing is.
  Communicator narrow() const {
    Communicator c = *this;
    c.narrow_ = true;
    return c;
  }
  /// Whether it makes a difference here.
  bool narrows() const { return narrow_ && group_ && group_->narrows(); }

  /// A few words for another rank, that takes them when it collects: nobody waits for
  /// anybody. For ranks of a World of which some take part in no collective for long.
  void post(int to, const std::string& note) const {
    check_rank(to, "post");
    if (!group_) return;
    auto work = [&] { group_->post(to, note); };
    call(work);
  }
  /// The next note that has come; empty where none has. Throws the error of a peer that failed.
  std::string collect() const {
    std::string note;
    auto work = [&] { note = group_->collect(); };
    if (group_) call(work);
    return note;
  }

  // Small host values: blocking, not recorded, for preambles, statistics and checks.

  void barrier() const {
    if (size_ > 1) run({});
  }

  /// All ranks' values (numbers or small plain structs), by rank.
  template <class T>
  std::vector<T> all_gather_value(const T& value) const {
    constexpr std::size_t words = (sizeof(T) + 3) / 4;
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<std::int32_t> mine(words), all(words * std::size_t(size_));
    std::memcpy(mine.data(), &value, sizeof(T));
    gather_words(mine, all);
    std::vector<T> values(std::size_t(size_), value);
    for (std::size_t i = 0; i < values.size(); ++i)
      std::memcpy(&values[i], &all[i * words], sizeof(T));
    return values;
  }

  /// The sum (max, min) over ranks, exact in T, the same bits on all of them.
  template <class T>
  T all_reduce_value(T value, ReduceOp reduce = ReduceOp::sum) const {
    const auto all = all_gather_value(value);
    T result = all[0];
    for (std::size_t i = 1; i < all.size(); ++i)
      result = reduce == ReduceOp::sum   ? T(result + all[i])
               : reduce == ReduceOp::max ? std::max(result, all[i])
                                         : std::min(result, all[i]);
    return result;
  }

  /// All ranks' strings, by rank, on all of them.
  std::vector<std::string> all_gather_text(const std::string& mine) const {
    const auto sizes = all_gather_value(std::uint64_t(mine.size()));
    const std::size_t words = *std::max_element(sizes.begin(), sizes.end()) / 4 + 1;
    std::vector<std::int32_t> part(words), all(words * std::size_t(size_));
    if (!mine.empty()) std::memcpy(part.data(), mine.data(), mine.size());
    gather_words(part, all);
    std::vector<std::string> texts(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i)
      texts[i].assign(reinterpret_cast<const char*>(&all[i * words]), sizes[i]);
    return texts;
  }

  /// Rank `root`'s bytes, on all ranks.
  std::string broadcast_text(std::string bytes, int root = 0) const {
    check_rank(root, "broadcast");
    const auto size = all_gather_value(std::uint64_t(bytes.size()))[std::size_t(root)];
    bytes.resize((size + 3) / 4 * 4);
    run_now({.collective = Collective::broadcast,
             .dtype = DType::i32,
             .from = root,
             .in = bytes.data(),
             .out = bytes.data(),
             .count = bytes.size() / 4});
    bytes.resize(size);
    return bytes;
  }

 private:
  Pending start(Stream& stream, Pass pass, Collective collective, const View& in, const View& out,
                const View& counted, ReduceOp reduce = ReduceOp::sum, int from = -1,
                std::size_t parts = 1) const {
    check_alike(collective, stream, in), check_alike(collective, stream, out);
    Operation op;
    op.collective = collective;
    op.reduce = reduce;
    op.dtype = counted.dtype;
    op.pass = stream.pass(pass);
    op.layer = stream.layer(), op.layer_name = stream.layer_name();
    op.from = from;
    op.in = in.data;
    op.out = out.data;
    op.space = space_of(stream, in, out);
    op.narrow = narrows() && op.reduces() && reduce == ReduceOp::sum && op.dtype == DType::f32;
    op.ordered = ordered_;
    op.count = counted.bytes() / size_of(counted.dtype) / parts;
    return start(stream, op, op.count > 0);
  }
  Pending start(Stream& stream, Operation op, bool any) const {
    if (size_ > 1 && !stream.silent()) {
      if (!any) return {};
      if (op.space) op.after = stream.event();
      if (!queue_) return group_->run(op), Pending();
      const bool by_device = op.space && group_->reaches(*op.space);
      if (op.space && !by_device) stream.only_once("collectives that go by way of the host");
      if (!by_device) return Pending(queue_, queue_->start(group_, op, stream.recorder()), op);
      return Pending(queue_, queue_->put(group_, op, stream.recorder()), op);
    }
    each_own_part(op, rank_, [&](const void* from, void* to, std::size_t bytes) {
      (op.space ? *op.space : host_memory()).carry(stream, from, to, bytes);
    });
    return {};
  }

  /// What a rank alone does: copy(from, to, bytes) of its own part, unless that is at its place.
  template <class Copy>
  static void each_own_part(const Operation& op, int rank, const Copy& copy) {
    const std::size_t bytes = op.count * size_of(op.dtype);
    const auto* in = static_cast<const char*>(op.in);
    auto* out = static_cast<char*>(op.out);
    if (op.collective == Collective::halo && (op.to != rank || op.from != rank)) return;
    check(op.collective != Collective::halo || op.count == op.received, op,
          " to itself, which expects ", op.received);
    if (op.collective == Collective::reduce_scatter || op.collective == Collective::all_to_all)
      in += bytes * std::size_t(rank);
    if (op.collective == Collective::all_gather || op.collective == Collective::all_to_all)
      out += bytes * std::size_t(rank);
    if (in != out && bytes > 0) copy(in, out, bytes);
  }

  void gather_words(const std::vector<std::int32_t>& mine, std::vector<std::int32_t>& all) const {
    run_now({.collective = Collective::all_gather,
             .dtype = DType::i32,
             .in = mine.data(),
             .out = all.data(),
             .count = mine.size()});
  }
  void run_now(const Operation& op) const {
    if (size_ == 1)
      return each_own_part(op, rank_, [](const void* from, void* to, std::size_t bytes) {
        host_memory().copy(from, to, bytes);
      });
    if (op.count > 0) run(op);
  }
  void run(const Operation& op) const {
    if (queue_)
      queue_->wait(queue_->start(group_, op, nullptr));
    else
      group_->run(op);
  }
  template <class Work>
  void call(Work& work) const {
    if (queue_)
      queue_->call(work);
    else
      work();
  }

  /// Of two buffers; one that is absent may say where it would lie.
  static MemorySpace* space_of(const Stream& stream, const View& a, const View& b) {
    check(!a || !b || a.space == b.space, "layer ", stream.layer(),
          ": the two buffers of a collective lie in different memories");
    return a.space ? a.space : b.space;
  }
  void check_alike(Collective collective, const Stream& stream, const View& v) const {
    check(size_ == 1 || v.layout.plain() || group_->alike(v.form().fingerprint()), "layer ",
          stream.layer(), ": ", name(collective), " of a buffer ", v.form(),
          " that was not shown to lie alike on all ", size_, " ranks (Communicator::alike)");
  }
  void check_parts(Collective collective, const Stream& stream, const View& part,
                   const View& whole) const {
    check(part.dtype == whole.dtype && part.bytes() * std::size_t(size_) == whole.bytes(), "layer ",
          stream.layer(), ": ", name(collective), " over ", size_, " ranks needs a whole of ",
          size_, " parts of one dtype, got ", part.form(), " and ", whole.form());
  }
  void check_rank(int rank, const char* what) const {
    check(0 <= rank && rank < size_, what, ": rank ", rank, " is not one of the ", size_,
          " ranks of the group");
  }

  std::shared_ptr<Transport> group_;
  std::shared_ptr<CommQueue> queue_;
  int rank_ = 0, size_ = 1;
  bool narrow_ = false, ordered_ = false;
};

}  // namespace lamina
