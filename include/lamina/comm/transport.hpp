// Transport: what carries collectives between the ranks of one group: MPI, threads, NCCL.
#pragma once

#include <lamina/comm/collective.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lamina {

/// An error that began at another rank, or the loss of that rank. The rank where it began says what
/// happened; whoever catches this one need not say it again.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// Blocking operations, called by the communication thread of a rank only. Each ends with an Error
/// when a peer has failed or does not come within the time limit. What carries a device's memory by
/// itself puts collectives into a stream there, from the thread that starts them.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The ranks of this group by their rank in the world, for profiles that tell late peers from
  /// transfer; empty where that is not known.
  virtual std::span<const int> members() const { return {}; }
  virtual void run(const Operation&) = 0;
  /// Whether put() carries what lies in this memory. If not, it passes through buffers of the host,
  /// and run().
  virtual bool reaches(const MemorySpace&) const { return false; }
  /// Puts it into this rank's stream for collectives, behind `after` and all that was put before by
  /// any group, and returns; it is done at the event. Allocates nothing once it is warm.
  virtual Event put(const Operation& op) { throw Error(text("nobody can put ", op, " in")); }
  /// When an operation that is `timed` began and ended there, in seconds of now(): the one of which
  /// put() returned this event, which is past. To be asked in the order of such operations. Nothing
  /// where the device does not say.
  virtual std::optional<std::pair<double, double>> times(const Event& /*done*/) { return {}; }
  /// What carries the bytes, in words for a preamble: "shared memory".
  virtual std::string carrier() const = 0;
  /// Whether some of it leaves a node, and can go as bf16: Operation::narrow is set for no other.
  virtual bool narrows() const { return false; }
  /// The same ranks over nothing but the library beneath, one call per collective: to compare with.
  /// Null where there is no such thing.
  virtual std::shared_ptr<Transport> plain() { return nullptr; }
  /// Zeros, where the group's collectives are fastest on what lies in `space`; null where all of
  /// that is alike. Collective: spaces and sizes may differ. What is not touched takes no memory of
  /// the host before somebody writes there.
  virtual std::shared_ptr<void> allocate(MemorySpace& /*space*/, std::size_t /*bytes*/,
                                         bool /*touched*/) {
    return nullptr;
  }
  /// These ranks of the group, in that order, this one among them; all of them pass the same ones.
  /// Collective over the group: a rank that passes none gets null.
  virtual std::shared_ptr<Transport> group(const std::vector<int>& members) = 0;
  /// A note for another rank, which gets it when it collects: nobody waits. For the group of all
  /// ranks, where some take part in no collective for long.
  virtual void post(int /*to*/, const std::string& /*note*/) {
    throw Error(text(carrier(), " carries no notes"));
  }
  /// The next note that has come for this rank; empty where none has.
  virtual std::string collect() { return {}; }
  /// Notes that buffers of the form with this fingerprint lie alike on all ranks of the group.
  void note_alike(std::uint64_t form) { alike_.push_back(form); }
  bool alike(std::uint64_t form) const {
    return std::find(alike_.begin(), alike_.end(), form) != alike_.end();
  }
  /// Called about ten times a second while there is nothing to run; throws if a peer has failed, or
  /// if what was put in has, or is not done within the time limit.
  virtual void poll() {}
  /// After the first error of this rank, on any of its threads: what was put in ends, and whoever
  /// waits for it there gets this error.
  virtual void give_up(const std::exception_ptr& /*error*/) noexcept {}
  /// Seconds that a collective waits for its peers.
  virtual double time_limit() const { return 300; }
  /// Whether its ranks are not there: see comm/imagined.hpp.
  virtual bool imagined() const { return false; }

 private:
  std::vector<std::uint64_t> alike_;
};

}  // namespace lamina
