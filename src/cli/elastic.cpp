#include "elastic.hpp"

#include "base/descriptor.hpp"
#include "flags.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/folder_lock.hpp>
#include <lamina/base/threads.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace lamina::cli {

namespace {

using lamina::detail::Descriptor;

constexpr std::string_view greeting = "lamina job 1\n";  // before anything is asked
constexpr std::size_t longest_line = 512;
constexpr std::size_t longest_path = sizeof sockaddr_un().sun_path;

Descriptor new_socket(int flags = 0) {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  check(path.size() < longest_path, path, ": the path of a socket has less than ", longest_path,
        " bytes");
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return address;
}

bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(std::size_t(sent));
  }
  return true;
}

int connect_to(int socket, const sockaddr_un& address) {
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

int bind_to(int socket, const sockaddr_un& address) {
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

/// So that of several jobs that find the socket of a dead one a single one takes its place, and
/// nobody takes a socket for dead that is being made. Waits a while for others.
FolderLock lock_folder_of(const std::string& path) {
  return {std::filesystem::absolute(path).parent_path().string(), std::chrono::seconds(5)};
}

bool is_socket(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

/// Removes the socket of a process that was killed. Returns whether one that lives has it; what is
/// no socket stays. One that is stopped answers nobody and has a full queue at last: it lives, too.
bool lives_or_goes(const std::string& path, const sockaddr_un& address) {
  if (!is_socket(path)) return false;
  if (connect_to(new_socket(SOCK_NONBLOCK).get(), address) == 0 || errno == EAGAIN) return true;
  if (errno == ECONNREFUSED) ::unlink(path.c_str());
  return false;
}

/// Without its end; empty where there is none in five seconds, or `listening` is shut down.
std::string receive_line(int socket, int listening = -1) {
  const double limit = now() + 5;
  std::string line;
  while (line.size() < longest_line) {
    pollfd from[] = {{socket, POLLIN, 0}, {listening, 0, 0}};
    const int left = int(1e3 * (limit - now()));
    char c = 0;
    if (left <= 0 || ::poll(from, 2, left) < 1 || from[1].revents != 0) return {};
    if (::recv(socket, &c, 1, 0) != 1) return {};
    if (c == '\n') return line;
    line += c;
  }
  return {};
}

/// With those of jobs that were killed out of the way.
std::string own_job() {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string folder = fs::temp_directory_path(error).string();
  check(!error, "lies in the folder that TMPDIR names, if nobody says where, and there is none");
  const FolderLock lock = lock_folder_of(folder + "/.");
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string(), name = at->path().filename().string();
    if (name.starts_with("lamina-") && name.ends_with(".job") && path.size() < longest_path)
      lives_or_goes(path, address_of(path));
  }
  return text(folder, "/lamina-", ::getpid(), ".job");
}

}  // namespace

void add_elastic_flags(CLI::App& app, ElasticOptions& o) {
  app.add_flag("--elastic", o.on, "ranks may come and go: with --workers, one per rank by default");
  count(app, "--ranks", o.ranks, 1, "with --elastic: how many of the ranks train from the start",
        65535);
  count(app, "--max-ranks", o.max_ranks, 1,
        "with --elastic: how many ranks there may be; those that mpirun did not start are started "
        "when they are asked for",
        65535);
  word(app, "--events", o.events, "FILE",
       "with --elastic: lines of a step and how many ranks there are from then on");
  word(app, "--job", o.job, "PATH", "with --elastic: the socket that `lamina resize` asks");
}

std::vector<Event> read_events(const std::string& path) {
  std::ifstream file(path);
  check(file.good(), path, ": cannot be read: ", std::strerror(errno));
  std::vector<Event> events;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream in(line.substr(0, line.find('#')));
    Event e;
    std::string more;
    if (in >> std::ws; in.eof()) continue;
    const bool read = bool(in >> e.step >> e.ranks) && !(in >> more);
    check(read && e.step >= 0 && e.ranks >= 1, path, ", line ", number,
          ": expected a step and a number of ranks, got '", line, "'");
    check(events.empty() || e.step >= events.back().step, path, ", line ", number, ": step ",
          e.step, " comes after ", events.empty() ? 0 : events.back().step);
    events.push_back(e);
  }
  check(!file.bad(), path, ": cannot be read: ", std::strerror(errno));
  return events;
}

struct JobSocket::Impl {
  Descriptor listening;
  Ask ask;
  std::thread thread;

  void serve() {
    while (true) {
      const Descriptor caller(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!caller) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
          return;  // shut down
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      if (send_all(caller.get(), greeting)) answer(caller.get());
    }
  }

  void answer(int caller) {
    std::istringstream in(receive_line(caller, listening.get()));
    std::string what, more;
    int ranks = 0;
    const bool read = bool(in >> what >> ranks) && !(in >> more) && what == "resize";
    const std::string no = read ? ask(ranks) : "expected 'resize RANKS'";
    send_all(caller, no.empty() ? text("ok to ", ranks, ranks == 1 ? " rank\n" : " ranks\n")
                                : text("no ", no, '\n'));
  }
};

JobSocket::JobSocket(std::string path, Ask ask)
    : path_(std::move(path)), impl_(std::make_unique<Impl>()) {
  const sockaddr_un address = address_of(path_);
  impl_->listening = new_socket();
  impl_->ask = std::move(ask);
  const FolderLock lock = lock_folder_of(path_);
  int made = bind_to(impl_->listening.get(), address);
  if (made != 0 && errno == EADDRINUSE) {
    check(!lives_or_goes(path_, address), path_,
          ": another job has this socket: expected a path of its own");
    made = bind_to(impl_->listening.get(), address);
  }
  check(made == 0, path_, ": the job's socket cannot be made: ", std::strerror(errno));
  ::chmod(path_.c_str(), 0600);
  const int listening = ::listen(impl_->listening.get(), 8);
  check(listening == 0, path_, ": ", std::strerror(errno));
  impl_->thread = std::thread([this] {
    unbind_thread();
    impl_->serve();
  });
}

JobSocket::~JobSocket() {
  ::unlink(path_.c_str());  // while it answers: where nobody does, another job makes its own
  ::shutdown(impl_->listening.get(), SHUT_RDWR);
  impl_->thread.join();
}

std::string ask_job(const std::string& path, int ranks) {
  struct stat status = {};
  const int found = ::stat(path.c_str(), &status);
  check(found == 0, path, ": ", std::strerror(errno),
        ": expected the socket of a running job, which its preamble names");
  check(S_ISSOCK(status.st_mode), path, ": is no socket of a job");
  const sockaddr_un address = address_of(path);
  const Descriptor socket = new_socket();
  const timeval limit = {.tv_sec = 5, .tv_usec = 0};  // where others wait for a job that is stopped
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int connected = connect_to(socket.get(), address);
  const bool full = connected != 0 && errno == EAGAIN;
  check(connected == 0, path, ": no job answers there: ",
        full ? "others have asked before, for 5 s" : std::strerror(errno));
  check(receive_line(socket.get()) + '\n' == greeting, path, ": who answers there is no job");
  check(send_all(socket.get(), text("resize ", ranks, '\n')), path, ": the job has ended");
  const std::string answer = receive_line(socket.get());
  check(!answer.empty(), path, ": the job did not answer");
  check(answer.starts_with("ok "), answer.substr(std::min<std::size_t>(3, answer.size())));
  return answer.substr(3);
}

ResizeRequests::ResizeRequests(const ElasticOptions& o, const Trainer& trainer)
    : trainer_(trainer) {
  if (!o.events.empty()) events_ = for_flag("--events", [&] { return read_events(o.events); });
  socket_ = for_flag("--job", [&] {
    return std::make_unique<JobSocket>(o.job.empty() ? own_job() : o.job,
                                       [this](int ranks) { return ask(ranks, "lamina resize"); });
  });
}

std::string ResizeRequests::ask(int ranks, const char* why) {
  std::string no = trainer_.why_not(ranks);
  int none = 0;
  if (no.empty() && !wanted_.compare_exchange_strong(none, ranks))
    no = text("a resize to ", none, none == 1 ? " rank" : " ranks",
              " is under way: ask again when it is done");
  if (no.empty()) why_ = why, fresh_ = true;
  return no;
}

int ResizeRequests::take() {
  if (!std::exchange(began_, true))  // who goes on takes up where the events before have led
    while (next_ + 1 < events_.size() && events_[next_ + 1].step <= trainer_.progress().step)
      ++next_;
  while (next_ < events_.size() && events_[next_].step <= trainer_.progress().step && !wanted_) {
    const Event event = events_[next_++];
    const std::string no = ask(event.ranks, "--events");
    if (!no.empty()) World::say(text("--events: step ", event.step, ": ", no));
  }
  if (!fresh_.exchange(false)) return 0;
  const int ranks = wanted_;
  if (ranks == trainer_.ranks().size()) done();
  return ranks;
}

std::string ResizeRequests::end() {
  socket_.reset();
  const int ranks = wanted_;
  if (ranks == 0) return {};
  return text("the training ended before it could go on with ", ranks,
              ranks == 1 ? " rank" : " ranks");
}

}  // namespace lamina::cli
