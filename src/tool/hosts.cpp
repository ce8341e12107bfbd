#include "hosts.hpp"

#include "child.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/error.hpp>
#include <lamina/base/file.hpp>
#include <lamina/base/host.hpp>

#include <algorithm>
#include <charconv>
#include <memory>
#include <sstream>

namespace lamina::cli {

namespace {

constexpr double patience = 4;  ///< seconds that a host may take to answer

/// Without its domain; addresses as they are.
std::string_view short_name(std::string_view host) {
  const bool address = host.find_first_not_of("0123456789.") == host.npos;
  return address ? host : host.substr(0, host.find('.'));
}

bool is_this(std::string_view host) {
  return host == "localhost" || short_name(host) == short_name(host_name());
}

/// "a:2", "a slots=2", "a"
std::pair<std::string, int> parse_host(const std::string& entry) {
  const auto name_end = entry.find_first_of(": \t");
  std::pair<std::string, int> host(entry.substr(0, name_end), 1);
  if (name_end == entry.npos) return host;
  std::string_view number(entry);
  number.remove_prefix(name_end + 1);
  if (entry[name_end] != ':') {
    const auto at = number.find("slots=");
    number = at == number.npos ? "" : number.substr(at + 6);
  }
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), host.second);
  check(error == std::errc() && end == number.data() + number.size() && host.second > 0,
        "--hosts: expected HOST:SLOTS, got '", entry, "'");
  return host;
}

/// Hosts that answer `true`, over what mpirun starts its daemons with.
std::vector<bool> answers(const std::vector<std::string>& hosts) {
  const char* agent = std::getenv("PRTE_MCA_plm_ssh_agent");  // Open MPI from version 5 on
  if (!agent) agent = std::getenv("OMPI_MCA_plm_rsh_agent");
  std::vector<std::string> command;
  std::istringstream words(agent ? agent : "ssh -o BatchMode=yes -o ConnectTimeout=3");
  for (std::string word; words >> word;) command.push_back(word);
  command.insert(command.end(), {"", "true"});
  std::vector<std::unique_ptr<Child>> asked;
  for (const std::string& host : hosts) {
    command.end()[-2] = host;
    asked.push_back(std::make_unique<Child>(command, true));
  }
  std::vector<bool> answers;
  const double end = now() + patience;
  for (const auto& child : asked)
    answers.push_back(child->wait(std::max(0.0, end - now())) && child->status() == 0);
  return answers;
}

}  // namespace

Hosts::Hosts(int slots) : hosts_{{.name = host_name(), .slots = slots}} {}

Hosts::Hosts(const std::string& list_or_file) : named_(true) {
  constexpr std::uint64_t limit = 1 << 20;  // bytes
  const bool is_file =
      list_or_file.find_first_of(":,") == list_or_file.npos && names_a_file(list_or_file);
  std::istringstream entries(is_file ? read_file(list_or_file, limit) : list_or_file);
  for (std::string entry; std::getline(entries, entry, is_file ? '\n' : ',');) {
    entry.erase(std::min(entry.find('#'), entry.size()));
    entry.erase(entry.find_last_not_of(" \t\r") + 1);
    if (entry.empty()) continue;
    auto [name, slots] = parse_host(entry);
    hosts_.push_back({.name = std::move(name), .slots = slots});
  }
  const auto here =
      std::ranges::find_if(hosts_, [](const Host& host) { return is_this(host.name); });
  check(here != hosts_.end(), "--hosts ", list_or_file, ": expected this host, ", host_name(),
        ", among them: it holds the snapshots");
  std::rotate(hosts_.begin(), here, here + 1);
}

int Hosts::Host::room(double time) const {
  if (!answers) return 0;
  return slots - int(std::ranges::count_if(closed, [&](double until) { return until > time; }));
}

int Hosts::room(double time) const {
  int sum = 0;
  for (const Host& host : hosts_) sum += host.room(time);
  return sum;
}

int Hosts::all() const {
  int sum = 0;
  for (const Host& host : hosts_) sum += host.slots;
  return sum;
}

Hosts::Host* Hosts::find(std::string_view name) {
  for (Host& host : hosts_)
    if (host.name == name) return &host;
  for (Host& host : hosts_)
    if (short_name(host.name) == short_name(name)) return &host;
  return is_this(name) || hosts_.size() == 1 ? &hosts_[0] : nullptr;
}

void Hosts::close_slot(std::string_view name, double until) {
  Host* const host = find(name);
  const double time = now();
  if (!host || (named_ && host == &hosts_[0] && host->room(time) == 1)) return;
  std::erase_if(host->closed, [&](double end) { return end <= time; });
  host->closed.push_back(until);
}

void Hosts::close_host(std::string_view name, double next) {
  Host* const host = find(name);
  if (host && host != &hosts_[0]) host->close(next);
}

void Hosts::ask_closed(double time, double again) {
  std::vector<Host*> asked;
  std::vector<std::string> names;
  for (Host& host : hosts_)
    if (!host.answers && host.next <= time) asked.push_back(&host), names.push_back(host.name);
  const auto answered = answers(names);
  for (std::size_t i = 0; i < asked.size(); ++i)
    asked[i]->answers = answered[i], asked[i]->next = now() + again;
}

std::vector<std::string> Hosts::ask_open(double next) {
  std::vector<Host*> asked;
  std::vector<std::string> names, closed;
  for (Host& host : hosts_)
    if (host.answers && &host != &hosts_[0]) asked.push_back(&host), names.push_back(host.name);
  const auto answered = answers(names);
  for (std::size_t i = 0; i < asked.size(); ++i)
    if (!answered[i]) asked[i]->close(next), closed.push_back(names[i]);
  return closed;
}

void Hosts::close_since(const Hosts& before, double then, double until) {
  const double time = now();
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    const int opened = host.room(time) - before.hosts_[i].room(then);
    if (!before.hosts_[i].answers)
      host.close(until);
    else if (opened > 0)
      host.closed.insert(host.closed.end(), std::size_t(opened), until);
  }
}

std::vector<std::string> Hosts::flags(double time) const {
  if (!named_) return {};
  std::string list;
  for (const Host& host : hosts_)
    if (const int room = host.room(time); room > 0)
      list += text(list.empty() ? "" : ",", host.name, ':', room);
  return {"--host", list};
}

}  // namespace lamina::cli
