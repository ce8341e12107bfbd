// Traces: what ran when, as files for ui.perfetto.dev and chrome://tracing. report.hpp writes one
// of a profile's last step; TraceWriter writes one of a run, step by step.
#pragma once

#include <lamina/tensor/stream.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace lamina {

/// Where `rank` of several writes its trace: "trace.json" -> "trace.0.json". One rank takes `path`.
std::string trace_path(const std::string& path, int rank, int ranks);

/// The trace of this rank. The file is complete JSON at any moment, also while the run goes on and
/// however it ends: each step is added to a copy that then takes the file's place at once. So it
/// needs the room twice, in `path`~0 and `path`~1, of which the file itself is one. They go away
/// with this; those of a run that was killed stay, until the next one.
///
///   TraceWriter trace("trace.json", world.comm().rank(), world.comm().size(), "node1, 4 threads");
///   profiler.end_step();
///   trace.step(7, profiler.last_begin(), profiler.last_step(), names);
///
/// Times are those of now(), so that the files of one node may be laid above one another.
class TraceWriter {
 public:
  /// Starts the file anew, without a step. `host` goes beside the rank's number. Throws Error
  /// naming the path.
  explicit TraceWriter(const std::string& path, int rank = 0, int ranks = 1,
                       const std::string& host = "");
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  ~TraceWriter();

  /// Adds a step that began at `begin`. `layers` are names by index; a span outside of them stands
  /// for work outside of layers. Throws Error naming the path if the disk is full; the file then
  /// holds the steps before, and goes on with the next one that fits.
  void step(std::int64_t number, double begin, std::span<const Span> spans,
            std::span<const std::string> layers);

  const std::string& path() const { return path_; }

 private:
  /// One of the two files, which take turns at having the second name `path_`.
  struct Copy {
    std::string name;
    int descriptor = -1;
    std::int64_t end = 0;  ///< where the next event goes, over the end of the list
  };

  void open(Copy& copy, const std::string& content);
  void append(Copy& copy, const std::string& content);
  void show(const Copy& copy);
  void close();

  std::string path_;
  int rank_;
  Copy copies_[2];
  int hidden_ = 0;      ///< the one that is not under `path_`
  std::string missed_;  ///< what the hidden one lacks
};

}  // namespace lamina
