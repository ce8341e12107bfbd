// Snapshots, in files that another process has in its memory.
#include "comm/board.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/base/file.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/train/snapshot.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace lamina {

namespace {

constexpr double share =
    0.01;  ///< of the time that snapshots may take, where nobody says how often
constexpr std::int64_t first_after = 10;  ///< steps, where nobody says

/// "board,snapshot,snapshot"
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts(1);
  for (const char c : list) c == ',' ? parts.emplace_back().clear() : parts.back().push_back(c);
  return parts;
}

/// Steps between two; 0: not said.
std::int64_t steps_between() {
  const char* value = std::getenv(detail::every_variable);
  if (!value || !*value) return 0;
  const char* end = value + std::strlen(value);
  std::int64_t steps = 0;
  const auto [read, error] = std::from_chars(value, end, steps);
  check(error == std::errc() && read == end && steps > 0, detail::every_variable, '=', value,
        ": expected a number of steps above 0");
  return steps;
}

/// On rank 0.
class Memory {
 public:
  explicit Memory(const std::vector<std::string>& files)
      : board(files[0].c_str()), files_{files[1], files[2]} {
    static std::atomic<std::int64_t> trainings = 0, lost = 0;
    if (lost.exchange(board->lost) != board->lost) trainings = 0;  // the program has begun again
    training_ = ++trainings;
  }

  /// Whether a later training of the program was under way: this one is done again, for it.
  bool behind() const { return newest_training() > training_; }
  std::string newest() const {
    return newest_training() == training_ ? files_[std::size_t(board->newest - 1)] : "";
  }
  Snapshots::Before before() const {
    const detail::Board& b = *board;
    const detail::Board::Snapshot& of = *b.newest_snapshot();
    Snapshots::Before all{.ranks = int(of.ranks),
                          .seconds = now() - (b.lost > 0 ? b.before.last : b.last),
                          .bytes = double(std::filesystem::file_size(newest())),
                          .why = b.why_of == b.taken ? b.why.data() : ""};
    for (std::int64_t i = of.lost; i < b.lost; ++i)
      append(all.why, text(all.why.empty() ? "rank " : ", then rank ",
                           b.losses[std::size_t(i)].rank.load(), " was lost"));
    return all;
  }
  /// The file that the next one goes into.
  const std::string& next() const { return files_[next_slot()]; }
  void taken(std::int64_t step, int ranks) {
    const std::size_t slot = next_slot();
    board->snapshots[slot].training = training_, board->snapshots[slot].step = step;
    board->snapshots[slot].ranks = ranks, board->snapshots[slot].lost = board->lost.load();
    board->newest = std::int64_t(slot + 1);
    ++board->taken;
  }
  void begin(std::int64_t step) {
    board->training = training_, board->from = step, board->step = step;
  }
  void done(std::int64_t step) {
    const double time = now();
    if (board->made == 0) board->first = time;
    board->last = time, board->step = step;
    ++board->made;
  }

  detail::BoardMap board;

 private:
  std::int64_t newest_training() const {
    const detail::Board::Snapshot* const newest = board->newest_snapshot();
    return newest ? newest->training.load() : 0;
  }
  std::size_t next_slot() const { return board->newest == 1; }

  std::int64_t training_ = 0;
  std::array<std::string, 2> files_;
};

class InMemory final : public Snapshots {
 public:
  InMemory(Communicator ranks, const std::string& where)
      : ranks_(std::move(ranks)), every_(steps_between()) {
    const std::string behind = on_first(ranks_, [&] {
      const auto files = split(where);
      check(files.size() == 3 && std::ranges::all_of(files, in_memory), detail::snapshot_variable,
            '=', where,
            ": cannot be reached: expected rank 0 on the host of lamina launch, and in "
            "its container");
      memory_.emplace(files);
      return std::string(memory_->behind() ? "behind" : "");
    });
    behind_ = !behind.empty();
  }

  std::string newest() const override {
    return on_first(ranks_, [&] { return memory_->newest(); });
  }
  Before before() const override {
    Before all;
    all.why = on_first(ranks_, [&] {
      all = memory_->before();
      return all.why;
    });
    struct Numbers {
      std::int64_t ranks;
      double seconds, bytes;
    };
    const auto of_first =
        ranks_.all_gather_value(Numbers{all.ranks, all.seconds, all.bytes}).front();
    all.ranks = int(of_first.ranks), all.seconds = of_first.seconds, all.bytes = of_first.bytes;
    return all;
  }
  void go_on(const Communicator& ranks) override {
    ranks_ = ranks;
    next_ = std::stoll(on_first(ranks_, [&] { return text(next_); }));
  }
  void begin(std::int64_t step) override {
    if (memory_) memory_->begin(step);
    begin_ = now(), from_ = step;
    next_ = step + (every_ > 0 ? every_ : first_after);
  }
  void done(std::int64_t step) override {
    if (memory_) memory_->done(step);
  }
  bool due(std::int64_t step) const override { return !behind_ && step >= next_; }

  void take(const PlacedNetwork& network, const Progress& progress) override {
    const double start = now();
    save_checkpoint(memory_ ? memory_->next() : std::string("snapshot"), network, progress, ranks_);
    if (memory_) memory_->taken(progress.step, ranks_.size());
    next_ = progress.step + (every_ > 0 ? every_ : interval(start, progress.step));
    begin_ = now(), from_ = progress.step;
  }

 private:
  /// After how many steps the next one costs no more than its share of the time, as rank 0 sees it
  /// when one that began at `start` has been taken.
  std::int64_t interval(double start, std::int64_t step) const {
    constexpr double least = 1e-6;  // seconds
    const double one_step =
        std::max(start - begin_, least) / double(std::max(step - from_, INT64_C(1)));
    const double wanted = std::ceil((now() - start) / (share * one_step));
    const auto steps = std::int64_t(std::clamp(wanted, 1.0, 1e6));
    return std::stoll(on_first(ranks_, [&] { return text(steps); }));
  }

  Communicator ranks_;
  std::int64_t every_, next_ = 0, from_ = 0;  ///< steps; from: what came after `begin_`
  double begin_ = 0;                          ///< seconds of now()
  bool behind_ = false;
  std::optional<Memory> memory_;  ///< on rank 0
};

}  // namespace

std::shared_ptr<Snapshots> Snapshots::find(const Communicator& ranks) {
  const char* const where = detail::launcher_memory();
  if (!where) return nullptr;
  return std::make_shared<InMemory>(ranks, where);
}

}  // namespace lamina
