// Traces in Chrome's trace event format, of a profile and of a run.
#include <lamina/base/file.hpp>
#include <lamina/profile/report.hpp>
#include <lamina/profile/trace.hpp>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

namespace lamina {

namespace {

constexpr std::string_view closing = "\n]}\n";

/// By Lane: which line of a process it is drawn in, counted from 1 since Perfetto takes thread 0
/// for the idle one. Kernels and waiting take turns on one thread, but are told apart more easily
/// so.
constexpr struct {
  int line;
  const char* name;
} lanes[] = {{1, "kernels"}, {3, "communication"}, {2, "waiting"}};

/// A name need not be UTF-8, but JSON must.
std::string json_string(std::string_view s) {
  using Json = nlohmann::json;
  return Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Whole nanoseconds, so that what nests in seconds nests in the file.
long long nanoseconds(double seconds) {
  return std::llround(std::clamp(seconds * 1e9, -4e18, 4e18));
}

std::string microseconds(long long nanoseconds) {
  return format("%s%lld.%03lld", nanoseconds < 0 ? "-" : "", std::llabs(nanoseconds / 1000),
                std::llabs(nanoseconds % 1000));
}

/// The names of a rank and of its lanes.
std::string headings(int rank, const std::string& host) {
  const auto event = [&](int line, const char* what, const std::string& value) {
    return text("{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", line, ",\"name\":\"", what,
                "\",\"args\":{", value, "}}");
  };
  const std::string title =
      host.empty() ? text("rank ", rank) : text("rank ", rank, " (", host, ')');
  std::string out = event(1, "process_name", text("\"name\":", json_string(title)));
  out += text(",\n", event(1, "process_sort_index", text("\"sort_index\":", rank)));
  for (const auto& lane : lanes) {
    out += text(",\n", event(lane.line, "thread_name", text("\"name\":\"", lane.name, '"')));
    out += text(",\n", event(lane.line, "thread_sort_index", text("\"sort_index\":", lane.line)));
  }
  return out;
}

/// Each after a comma, the outer ones first. `origin` is where the trace's time begins.
std::string events(int rank, std::span<const Span> spans, std::span<const std::string> layers,
                   double origin) {
  std::vector<const Span*> sorted;
  for (const Span& s : spans) sorted.push_back(&s);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Span* a, const Span* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
  });
  std::map<std::string_view, std::string> known;
  const auto quote = [&](std::string_view name) -> const std::string& {
    const auto [at, added] = known.try_emplace(name);
    if (added) at->second = json_string(name);
    return at->second;
  };
  std::string out;
  for (const Span* s : sorted) {
    const long long begin = nanoseconds(s->begin - origin), end = nanoseconds(s->end - origin);
    const bool named = s->layer >= 0 && std::size_t(s->layer) < layers.size();
    const std::string_view layer =
        named ? std::string_view(layers[std::size_t(s->layer)]) : outside_layers;
    out += text(",\n{\"ph\":\"X\",\"pid\":", rank, ",\"tid\":", lanes[int(s->lane)].line,
                ",\"ts\":", microseconds(begin), ",\"dur\":", microseconds(end - begin),
                ",\"name\":", quote(layer), ",\"cat\":\"", name(s->pass),
                "\",\"args\":{\"what\":", quote(s->what),
                ",\"bytes\":", format("%.17g", std::isfinite(s->bytes) ? s->bytes : 0.0),
                ",\"pass\":\"", name(s->pass), "\"}}");
  }
  return out;
}

constexpr const char* opening = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(text(path, ": cannot ", what, ": ", std::strerror(errno)));
}

}  // namespace

void write_trace(const std::string& path, const Profile& profile) {
  std::string out = opening;
  double origin = 0;  // ranks agree on it; a trace has no times below zero
  for (const auto& spans : profile.timeline)
    for (const TimelineSpan& s : spans) origin = std::min(origin, s.begin);
  for (std::size_t r = 0; r < std::max<std::size_t>(profile.timeline.size(), 1); ++r) {
    out += r > 0 ? ",\n" : "";
    out += headings(int(r), r < profile.hosts.size() ? profile.hosts[r] : "");
    std::vector<Span> spans;
    if (r < profile.timeline.size())
      for (const TimelineSpan& s : profile.timeline[r])
        spans.push_back({s.layer, s.pass, s.lane, s.what.c_str(), s.begin, s.end, s.bytes});
    out += events(int(r), spans, profile.layers, origin);
  }
  write_file(path, out.append(closing));
}

std::string trace_path(const std::string& path, int rank, int ranks) {
  if (ranks < 2) return path;
  const auto name = path.find_last_of('/') + 1;  // 0 where there is no folder
  const auto dot = path.find_last_of('.');
  const auto at = dot == std::string::npos || dot <= name ? path.size() : dot;
  return text(path.substr(0, at), '.', rank, path.substr(at));
}

TraceWriter::TraceWriter(const std::string& path, int rank, int ranks, const std::string& host)
    : path_(trace_path(path, rank, ranks)), rank_(rank) {
  check(!path.empty(), "a trace needs a file name");
  struct stat status = {};
  check(::stat(path_.c_str(), &status) != 0 || S_ISREG(status.st_mode), path_,
        ": expected a regular file");
  try {
    for (int i = 0; i < 2; ++i) {
      copies_[i].name = text(path_, '~', i);
      open(copies_[i], opening + headings(rank, host));
    }
    show(copies_[0]);
    hidden_ = 1;
  } catch (...) {
    close();  // a destructor does not run after its constructor has thrown
    throw;
  }
}

TraceWriter::~TraceWriter() { close(); }

void TraceWriter::close() {
  for (int i = 0; i < 2; ++i) {
    if (copies_[i].descriptor < 0) continue;
    ::close(copies_[i].descriptor);
    ::unlink(copies_[i].name.c_str());  // what is shown stays under its other name
  }
}

void TraceWriter::open(Copy& copy, const std::string& content) {
  ::unlink(copy.name.c_str());  // of a run that was killed
  copy.descriptor = ::open(copy.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (copy.descriptor < 0) fail(path_, "create");
  append(copy, content);
}

void TraceWriter::append(Copy& copy, const std::string& content) {
  const std::string all = text(content, closing);
  for (std::size_t done = 0; done < all.size();) {
    const ssize_t n = ::pwrite(copy.descriptor, all.data() + done, all.size() - done,
                               off_t(copy.end) + off_t(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "write");
    done += std::size_t(n);
  }
  copy.end += std::int64_t(content.size());
  // A step that failed may have left more than this one took.
  if (::ftruncate(copy.descriptor, off_t(copy.end) + off_t(closing.size())) != 0)
    fail(path_, "write");
}

void TraceWriter::show(const Copy& copy) {
  const std::string link = path_ + '~';
  ::unlink(link.c_str());
  if (::link(copy.name.c_str(), link.c_str()) == 0 && std::rename(link.c_str(), path_.c_str()) == 0)
    return;
  const int error = errno;
  ::unlink(link.c_str());
  errno = error;
  fail(path_, "replace");
}

// Why two files: overwriting the end of one would take one write(), and that is not enough. The
// kernel copies page by page, and stops between two of them when the process is killed.
void TraceWriter::step(std::int64_t number, double begin, std::span<const Span> spans,
                       std::span<const std::string> layers) {
  std::string news = text(",\n{\"ph\":\"i\",\"s\":\"p\",\"pid\":", rank_,
                          ",\"tid\":1,\"ts\":", microseconds(nanoseconds(begin)),
                          ",\"name\":\"step ", number, "\"}");
  news += events(rank_, spans, layers, 0);
  Copy& copy = copies_[hidden_];
  const std::int64_t end = copy.end;
  try {
    append(copy, missed_ + news);
    show(copy);
  } catch (const Error&) {
    copy.end = end;
    [[maybe_unused]] const int ignored = ::ftruncate(copy.descriptor, off_t(end));  // gives room
    throw;
  }
  hidden_ = 1 - hidden_;
  missed_ = std::move(news);
}

}  // namespace lamina
