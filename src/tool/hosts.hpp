// Hosts: where ranks may run, some of which is closed for a while.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lamina::cli {

class Hosts {
 public:
  /// This host alone.
  explicit Hosts(int slots);
  /// A list, "a:2,b:2", or a file that has "a:2" or "a slots=2" on each line; one slot where the
  /// number is not given. This host must be among them: it comes first, so that rank 0 is here.
  /// Throws Error.
  explicit Hosts(const std::string& list_or_file);

  /// How many ranks there is room for at `time`, and how many if nothing were closed.
  int room(double time) const;
  int all() const;
  /// One slot of a host is closed up to `until`. Where hosts were named, this one keeps its last.
  void close_slot(std::string_view host, double until);
  /// All slots, up to when it answers again; it is asked at `next`.
  void close_host(std::string_view host, double next);
  /// Asks those of the closed hosts whose time has come, which are `again` seconds later asked the
  /// next time.
  void ask_closed(double time, double again);
  /// Asks the others of the hosts that are open: those that do not answer are closed.
  std::vector<std::string> ask_open(double next);
  /// Closes up to `until` what has been opened since it was as `before` at `then`.
  void close_since(const Hosts& before, double then, double until);
  /// What mpirun is told: {"--host", "a:2,b:1"}; nothing where no hosts were named.
  std::vector<std::string> flags(double time) const;

 private:
  struct Host {
    std::string name;
    int slots = 1;
    std::vector<double> closed = {};  ///< slots, up to when
    bool answers = true;
    double next = 0;  ///< when it is asked

    int room(double time) const;
    /// All slots, up to when it answers; it is asked at `time`.
    void close(double time) { answers = false, next = time; }
  };
  Host* find(std::string_view name);

  bool named_ = false;
  std::vector<Host> hosts_;
};

}  // namespace lamina::cli
