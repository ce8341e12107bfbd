// Collectives between the processes of one node, through memory that they share.
#include "comm/mpi_shared.hpp"

#include "comm/mpi_combine.hpp"

#include <lamina/base/clock.hpp>

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace lamina::detail {
namespace {

/// Above this, each rank sums a part and all read it; up to this, each rank sums all by itself,
/// which takes one meeting instead of two.
constexpr std::size_t small_bytes = 16 << 10;
constexpr std::size_t gather_bytes = 8 << 20;

/// Seconds that a rank stays awake for a peer. To be woken may take half a millisecond; once all
/// are there, a rank that fell asleep at each step would keep the others waiting so long that they
/// did, too.
constexpr double for_all = 100e-6, for_next = 1e-3;

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

// ---- the node --------------------------------------------------------------------------------

/// How often rank `from` has come to a meeting with rank `to`; in the segment of the latter.
struct alignas(64) SharedNode::Flag {
  std::atomic<unsigned> arrived;
  std::atomic<unsigned> asleep;  ///< whether `to` must be woken
};

/// Followed by its bytes.
struct alignas(64) SharedNode::Slot {
  Called called;                   ///< to be compared
  SharedBuffers::Address address;  ///< of the buffer

  char* bytes() { return reinterpret_cast<char*>(this + 1); }
};

SharedNode::SharedNode(MPI_Comm world, Lookout& lookout, const std::vector<int>& hosts,
                       const SharedNode* former) {
  if (former) buffers_ = former->buffers_;
  int rank = 0, ranks = 1, on_node = 0;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &ranks);
  const char* wanted = std::getenv("LAMINA_SHM");
  const bool off = wanted && std::string_view(wanted) == "0";
  if (off) reason_ = "LAMINA_SHM=0";
  const char* limit = std::getenv("LAMINA_NODE_SIZE");
  const int node_size = limit && *limit ? std::atoi(limit) : ranks;
  check(node_size > 0, "LAMINA_NODE_SIZE=", limit, ": expected a number of ranks above 0");

  MPI_Comm host = MPI_COMM_NULL, node = MPI_COMM_NULL;
  if (hosts.empty())
    check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
  else
    check_mpi(MPI_Comm_split(world, hosts[std::size_t(rank)], rank, &host), "MPI_Comm_split");
  MPI_Comm_rank(kept(host), &on_node);
  check_mpi(MPI_Comm_split(host, off ? MPI_UNDEFINED : on_node / node_size, rank, &node),
            "MPI_Comm_split");
  if (kept(node) != MPI_COMM_NULL) add_segments(node, hosts.empty() ? nullptr : &lookout);

  int mine[2] = {rank, place_};
  if (size_ > 1) MPI_Bcast(&mine[0], 1, MPI_INT, 0, node);
  std::vector<int> all(2 * std::size_t(ranks));
  check_mpi(MPI_Allgather(mine, 2, MPI_INT, all.data(), 2, MPI_INT, world), "MPI_Allgather");
  for (std::size_t r = 0; r < std::size_t(ranks); ++r) {
    nodes_.push_back(all[2 * r]);
    places_.push_back(all[2 * r + 1]);
  }
}

void SharedNode::add_segments(MPI_Comm node, Lookout* lookout) {
  MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN);
  int size = 1;
  MPI_Comm_size(node, &size);
  if (size == 1) return;
  // Measured at 2 ranks: best where a piece is larger than the second cache, so that it is taken
  // from the third, which cores share. All slots together should fit there.
  constexpr std::size_t third = 32 << 20, least = 64 << 10, most = 1280 << 10;
  slot_bytes_ = std::clamp(third / std::size_t(2 * size) / 64 * 64, least, most);
  const std::size_t bytes = sizeof(Flag) * std::size_t(size) + 2 * (sizeof(Slot) + slot_bytes_);
  segments_ = lookout ? buffers(node, bytes, *lookout) : window(node, bytes);
  if (segments_.empty()) return;
  MPI_Comm_rank(node, &place_);
  std::memset(segments_[std::size_t(place_)], 0, bytes);
  met_.resize(std::size_t(size));
  last_places_.reserve(std::size_t(size));
  size_ = size;
  MPI_Barrier(node);
}

/// Between ranks that came at once; none, with a reason, where that cannot be.
std::vector<char*> SharedNode::window(MPI_Comm node, std::size_t bytes) {
  int size = 1;
  MPI_Comm_size(node, &size);
  const auto agreed = [&](bool mine) {  // on all ranks of the node
    int works = mine, all_work = 0;
    MPI_Allreduce(&works, &all_work, 1, MPI_INT, MPI_MIN, node);
    return all_work != 0;
  };
  // The segments are a file. Where the rank that makes it cannot, Open MPI leaves the others
  // waiting.
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (!agreed(limit.rlim_cur >= std::size_t(size) * (bytes + (64 << 10)))) {
    reason_ = "files may not be large enough (ulimit -f)";
    return {};
  }

  MPI_Info info = MPI_INFO_NULL;  // a segment of pages of its own, near the rank that writes it
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  MPI_Win window = MPI_WIN_NULL;  // lives as long as MPI
  void* base = nullptr;
  const int status = MPI_Win_allocate_shared(MPI_Aint(bytes + 64), 1, info, node, &base, &window);
  MPI_Info_free(&info);
  if (!agreed(status == MPI_SUCCESS)) {
    reason_ = "MPI_Win_allocate_shared failed";
    return {};
  }
  std::vector<char*> segments;
  for (int place = 0; place < size; ++place) {
    MPI_Aint length = 0;
    int unit = 0;
    check_mpi(MPI_Win_shared_query(window, place, &length, &unit, &base), "MPI_Win_shared_query");
    segments.push_back(reinterpret_cast<char*>((std::uintptr_t(base) + 63) / 64 * 64));
  }
  return segments;
}

/// Where some ranks came later: a window would have to be freed by all at once before MPI ends.
std::vector<char*> SharedNode::buffers(MPI_Comm node, std::size_t bytes, Lookout& lookout) {
  int size = 1;
  MPI_Comm_size(node, &size);
  std::vector<int> places(static_cast<std::size_t>(size));
  std::iota(places.begin(), places.end(), 0);
  segment_ = buffers_->make(node, lookout, places, places, bytes, true);
  std::vector<char*> segments;
  if (!segment_)
    reason_ = "its ranks cannot reach each other's memory";
  else
    for (const int place : places)
      segments.push_back(buffers_->at(place, buffers_->find(segment_.get())));
  return segments;
}

SharedNode::Flag& SharedNode::flag(int from, int to) const {
  return reinterpret_cast<Flag*>(segments_[std::size_t(to)])[from];
}

SharedNode::Slot& SharedNode::slot(int place, unsigned parity) const {
  char* first = segments_[std::size_t(place)] + sizeof(Flag) * std::size_t(size_);
  return *reinterpret_cast<Slot*>(first + parity * (sizeof(Slot) + slot_bytes_));
}

void SharedNode::arrive(int place) {
  Flag& f = flag(place_, place);
  f.arrived = ++met_[std::size_t(place)];
  if (f.asleep.load() && f.asleep.exchange(0))
    syscall(SYS_futex, &f.arrived, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void SharedNode::await(int place, const Operation& operation, Lookout& lookout,
                       double patience) const {
  Flag& f = flag(place, place_);
  const unsigned goal = met_[std::size_t(place)];
  const auto there = [&] { return int(f.arrived.load() - goal) >= 0; };
  // Spin while a peer may be on its way; then let other threads run; then sleep until woken.
  for (int i = 0; i < 200; ++i) {
    if (there()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  const double begin = now();
  while (now() - begin < patience) {
    sched_yield();
    if (there()) return;
  }
  while (true) {
    f.asleep = 1;
    const unsigned seen = f.arrived;
    if (int(seen - goal) >= 0) break;
    const timespec tenth{0, 100'000'000};
    syscall(SYS_futex, &f.arrived, FUTEX_WAIT, seen, &tenth, nullptr, 0);
    if (there()) break;
    lookout.look(operation, now() - begin);
  }
  f.asleep = 0;
}

// ---- a group ---------------------------------------------------------------------------------

/// A buffer cut in `parts`, which differ by one element at most and go through the slots in pieces.
/// Part p belongs to member p. Counts are in elements, offsets in bytes.
struct SharedGroup::Cut {
  std::size_t element, count, parts, piece;
  std::size_t stride;  ///< between the pieces of two parts in a slot; 0 where it holds one

  std::size_t begin(std::size_t part) const { return begin_of(count, part, parts); }
  std::size_t start(std::size_t part) const { return begin(part) * element; }
  std::size_t bytes(std::size_t part) const { return start(part + 1) - start(part); }
  std::size_t pieces() const { return (count + parts * piece - 1) / (parts * piece); }
  /// Of piece `i` from the start of its part.
  std::size_t offset(std::size_t i) const { return i * piece * element; }
  std::size_t elements(std::size_t part, std::size_t i) const {
    const std::size_t all = begin(part + 1) - begin(part);
    return std::min(piece, all - std::min(all, i * piece));
  }
  std::size_t bytes(std::size_t part, std::size_t i) const { return elements(part, i) * element; }
};

SharedGroup::SharedGroup(SharedNode& node, Lookout& lookout, const std::vector<int>& members,
                         int rank)
    : node_(node), lookout_(lookout), id_(++node.groups_), ranks_of_group_(int(members.size())) {
  const auto node_of = [&](int member) { return node.nodes_[std::size_t(member)]; };
  const int here = node_of(members[std::size_t(rank)]);
  owners_ = ranks_of_group_;
  for (int r = 0; r < ranks_of_group_; ++r) {
    const int member = members[std::size_t(r)];
    const auto beside = std::count_if(members.begin(), members.end(),
                                      [&](int m) { return node_of(m) == node_of(member); });
    owners_ = std::min(owners_, int(beside));
    useful_ = useful_ || beside > 1;
    if (node_of(member) != here) {
      whole_ = false;
      continue;
    }
    if (r == rank) me_ = size_;
    ranks_.push_back(r);
    places_.push_back(node.places_[std::size_t(member)]);
    ++size_;
  }
  reached_.resize(std::size_t(size_));
  sources_.reserve(std::size_t(size_));
  targets_.reserve(std::size_t(size_));
}

char* SharedGroup::mine(std::size_t offset) const {
  return node_.slot(places_[std::size_t(me_)], parity_).bytes() + offset;
}
const char* SharedGroup::theirs(int member, std::size_t offset) const {
  return node_.slot(places_[std::size_t(member)], 1 - parity_).bytes() + offset;
}

/// The stages of a piece, each one step after the one before; the next piece follows at once. The
/// stages of a step have nothing to do with each other: every second rank takes them the other way
/// round, so that some work in the caches while others read from memory.
template <class... Stage>
void SharedGroup::steps(const Operation& op, std::size_t pieces, const Stage&... stage) {
  if (size_ == 1 || pieces == 0) return;
  begin(op);
  constexpr std::size_t stages = sizeof...(stage);
  for (std::size_t step = 0;; ++step) {
    const auto run = [&](std::size_t number) {
      std::size_t n = 0;
      const auto is_it = [&] { return n++ == number; };
      if (step >= number && step - number < pieces)
        ((is_it() ? stage(step - number) : void()), ...);
    };
    for (std::size_t k = 0; k < stages; ++k) run(me_ % 2 == 0 ? k : stages - 1 - k);
    if (step == pieces + stages - 2) break;
    meet(op, step == 0);
    if (step == 0) compare();
  }
  for (int i = 0; i < size_; ++i)  // we have read all
    if (i != me_) node_.arrive(places_[std::size_t(i)]);
}

/// Waits for those who may still read our slots, unless they are in this group, where the steps see
/// to that. Writes down what is called.
void SharedGroup::begin(const Operation& op) {
  if (node_.last_group_ != id_) {
    for (const int place : node_.last_places_)
      if (place != node_.place_) node_.await(place, op, lookout_, for_all);
    node_.last_group_ = id_;
    node_.last_places_ = places_;
  }
  node_.slot(node_.place_, parity_).called.set(op);
}

void SharedGroup::meet(const Operation& op, bool first) {
  for (int i = 0; i < size_; ++i)
    if (i != me_) node_.arrive(places_[std::size_t(i)]);
  for (int i = 0; i < size_; ++i)
    if (i != me_) node_.await(places_[std::size_t(i)], op, lookout_, first ? for_all : for_next);
  parity_ = 1 - parity_;
}

/// Throws where not all called the same thing; the same words on all ranks.
void SharedGroup::compare() const {
  const auto called = [&](std::size_t member) -> const Called& {
    return node_.slot(places_[member], 1 - parity_).called;
  };
  for (std::size_t i = 1; i < places_.size(); ++i)
    check_same(called(0), ranks_[0], called(i), ranks_[i], ranks_of_group_);
}

/// For slots that hold a piece of each part, or of one part only.
SharedGroup::Cut SharedGroup::cut(DType dtype, std::size_t count, int parts, bool all) const {
  const std::size_t room = node_.slot_bytes_ / std::size_t(all ? parts : 1) / 64 * 64;
  return {size_of(dtype), count, std::size_t(parts), room / size_of(dtype), all ? room : 0};
}

/// Our piece of each part goes into our slot, for the member whose part it is.
void SharedGroup::put(const Cut& c, const char* whole, std::size_t piece) const {
  for (std::size_t p = 0; p < c.parts; ++p)
    if (int(p) != me_)
      copy(mine(p * c.stride), whole + c.start(p) + c.offset(piece), c.bytes(p, piece));
}

/// Member p's piece of its part comes from its slot.
void SharedGroup::get(const Cut& c, char* whole, std::size_t piece) const {
  for (std::size_t p = 0; p < c.parts; ++p)
    if (int(p) != me_)
      copy(whole + c.start(p) + c.offset(piece), theirs(int(p), p * c.stride), c.bytes(p, piece));
}

/// The piece of our own part, summed over all members, goes to `part`; and into our slot too, where
/// the others need it.
void SharedGroup::reduce(const Operation& op, const Cut& c, const char* whole, char* part,
                         std::size_t piece, bool share) {
  const auto me = std::size_t(me_);
  if (me >= c.parts) return;
  sources_.clear();
  for (int i = 0; i < size_; ++i) sources_.push_back(theirs(i, me * c.stride));
  sources_[me] = whole + c.start(me) + c.offset(piece);
  targets_ = {part + c.offset(piece)};
  if (share) targets_.push_back(mine(me * c.stride));
  combine_all(op, sources_, c.elements(me, piece), targets_);
}

/// Each member sums all of a small buffer by itself: one meeting instead of two.
void SharedGroup::all_reduce_small(const Operation& op, char* data) {
  const auto put_all = [&](std::size_t) { copy(mine(), data, op.count * size_of(op.dtype)); };
  const auto sum_all = [&](std::size_t) {
    sources_.clear();
    for (int i = 0; i < size_; ++i) sources_.push_back(theirs(i));
    targets_ = {data};
    combine_all(op, sources_, op.count, targets_);
  };
  steps(op, 1, put_all, sum_all);
}

void SharedGroup::all_reduce(const Operation& op, char* data) {
  const Cut c = cut(op.dtype, op.count, size_, true);
  if (reach(op, c, data)) return in_place(op, c, nullptr, nullptr);
  char* const part = data + c.start(std::size_t(me_));
  steps(
      op, c.pieces(), [&](std::size_t i) { put(c, data, i); },
      [&](std::size_t i) { reduce(op, c, data, part, i, true); },
      [&](std::size_t i) { get(c, data, i); });
}

void SharedGroup::reduce_scatter(const Operation& op, std::size_t count, int parts,
                                 const char* whole, char* part) {
  if (size_ == 1) return copy(part, whole, count * size_of(op.dtype));
  const Cut c = cut(op.dtype, count, parts, true);
  if (reach(op, c, whole)) return in_place(op, c, nullptr, part);
  steps(
      op, c.pieces(), [&](std::size_t i) { put(c, whole, i); },
      [&](std::size_t i) { reduce(op, c, whole, part, i, false); });
}

/// `most`: false in place of copying more bytes than that twice.
bool SharedGroup::all_gather(const Operation& op, std::size_t count, int parts, const char* part,
                             char* whole, std::size_t most) {
  if (size_ == 1) return copy(whole, part, count * size_of(op.dtype)), true;
  const Cut c = cut(op.dtype, count, parts, false);
  if (reach(op, c, whole)) return in_place(op, c, part, nullptr), true;
  if (count * size_of(op.dtype) > most) return false;
  if (me_ < parts) copy(whole + c.start(std::size_t(me_)), part, c.bytes(std::size_t(me_)));
  const auto put_part = [&](std::size_t i) {
    if (me_ < parts) copy(mine(), part + c.offset(i), c.bytes(std::size_t(me_), i));
  };
  steps(op, c.pieces(), put_part, [&](std::size_t i) { get(c, whole, i); });
  return true;
}

/// Whether everybody's buffer is where all can reach it: `reached_` is then where they are.
bool SharedGroup::reach(const Operation& op, const Cut& c, const char* whole) {
  if (c.count * c.element <= small_bytes) return false;
  begin(op);
  node_.slot(node_.place_, parity_).address = node_.buffers_->find(whole);
  meet(op, true);
  compare();
  const auto address = [&](int i) -> const SharedBuffers::Address& {
    return node_.slot(places_[std::size_t(i)], 1 - parity_).address;
  };
  for (int i = 0; i < size_; ++i) {
    if (address(i).buffer != address(me_).buffer) return false;
    reached_[std::size_t(i)] = node_.buffers_->at(places_[std::size_t(i)], address(i));
    if (!reached_[std::size_t(i)]) return false;
  }
  return true;
}

/// Once all have met, each member combines its own part of the buffers that reach() found, and
/// nobody leaves before all have done so. The part is that of all of them, or `from`; the result
/// goes to all of them, or `to`.
void SharedGroup::in_place(const Operation& op, const Cut& c, const char* from, char* to) {
  if (const auto me = std::size_t(me_); me < c.parts) {
    sources_.clear(), targets_.clear();
    for (const char* whole : reached_) sources_.push_back(whole + c.start(me));
    for (std::size_t i = 0; i < reached_.size(); ++i)  // ours first: it is nearest
      targets_.push_back(reached_[(me + i) % reached_.size()] + c.start(me));
    if (from) sources_ = {from};
    if (to) targets_ = {to};
    combine_all(op, sources_, c.begin(me + 1) - c.begin(me), targets_);
  }
  meet(op, false);
}

/// Where data are moved and not summed, MPI copies once, from process to process, and we twice
/// where buffers are not shared: for that, ours gains only while they stay in the caches.
bool SharedGroup::run(const Operation& op) {
  if (!whole_) return false;
  const std::size_t bytes = op.count * size_of(op.dtype), total = op.count * std::size_t(size_);
  const auto* const in = static_cast<const char*>(op.in);
  auto* const out = static_cast<char*>(op.out);
  const auto nothing = [](std::size_t) {};
  switch (op.collective) {
    case Collective::all_reduce:
      bytes <= small_bytes ? all_reduce_small(op, out) : all_reduce(op, out);
      return true;
    case Collective::reduce_scatter:
      reduce_scatter(op, total, size_, in, out);
      return true;
    case Collective::all_gather:
      return all_gather(op, total, size_, in, out, gather_bytes);
    case Collective::barrier:
      steps(op, 1, nothing, nothing);
      return true;
    default:
      return false;
  }
}

}  // namespace lamina::detail
