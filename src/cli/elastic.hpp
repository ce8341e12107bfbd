// Ranks that come and go: who asks for it, a file of events or another process.
#pragma once

#include "options.hpp"

#include <lamina/train/trainer.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lamina::cli {

struct ElasticOptions {
  bool on = false;
  int ranks = 0;      // that train from the start; 0 = all
  int max_ranks = 0;  // that there may be; 0 = as many as were started
  std::string events, job;
};

void add_elastic_flags(CLI::App& app, ElasticOptions& o);

/// Of a file: so many ranks, from when so many steps are done.
struct Event {
  std::int64_t step = 0;
  int ranks = 0;
};

/// Lines with two numbers, step and ranks, steps in order; what follows a # is a remark. Throws
/// Error with the number of the line that is none of this.
std::vector<Event> read_events(const std::string& path);

/// A socket in the file system that takes the requests of `lamina resize`, on a thread of its own.
class JobSocket {
 public:
  /// What to answer: empty where the request is taken.
  using Ask = std::function<std::string(int ranks)>;

  /// Throws Error where `path` exists, and where it cannot be made; the socket of a job that was
  /// killed is replaced.
  JobSocket(std::string path, Ask ask);
  ~JobSocket();
  const std::string& path() const { return path_; }

 private:
  struct Impl;
  std::string path_;
  std::unique_ptr<Impl> impl_;
};

/// Sends a request to the job behind this socket; returns its answer. Throws Error where nobody
/// answers, and where the job refuses.
std::string ask_job(const std::string& path, int ranks);

/// What a training is asked for, on rank 0. Objections to an event are a line on stderr, those to a
/// request its answer: training goes on.
class ResizeRequests {
 public:
  ResizeRequests(const ElasticOptions& o, const Trainer& trainer);

  /// How many ranks are wanted now; 0 = as it is.
  int take();
  /// The last one is done, or nothing will become of it.
  void done() { wanted_ = 0; }
  /// Takes no more. What is to be said when training has ended before one that was asked for; or
  /// nothing.
  std::string end();
  /// Who asked for the last one.
  const char* why() const { return why_; }
  const std::string& job() const { return socket_->path(); }

 private:
  std::string ask(int ranks, const char* why);

  const Trainer& trainer_;
  std::vector<Event> events_;
  std::size_t next_ = 0;
  bool began_ = false;
  std::atomic<int> wanted_ = 0;  // taken or not
  std::atomic<bool> fresh_ = false;
  const char* why_ = "";  // written before `fresh_`
  std::unique_ptr<JobSocket> socket_;
};

}  // namespace lamina::cli
