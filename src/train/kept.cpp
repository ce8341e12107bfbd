// Checkpoints beside the last one: which there are, which stay.
#include <lamina/base/file.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/train/kept.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>
#include <vector>

namespace lamina {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view infix = ".step-";

/// The files `path`.step-N, those that were saved last in front.
std::vector<fs::path> kept(const fs::path& path) {
  const std::string start = path.filename().string() + std::string(infix);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::tuple<fs::file_time_type, std::int64_t, fs::path>> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start)) continue;
    std::int64_t step = 0;
    const char *begin = name.data() + start.size(), *end = name.data() + name.size();
    const auto read = std::from_chars(begin, end, step);
    std::error_code gone;  // a link to nowhere, say
    if (begin == end || read.ec != std::errc() || read.ptr != end || !entry.is_regular_file(gone))
      continue;
    found.emplace_back(entry.last_write_time(gone), step, path.parent_path() / name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> paths;
  for (auto& [time, step, each] : found) paths.push_back(std::move(each));
  return paths;
}

/// Another name of the same file, not of a link to it; a copy where the file system has none. A
/// file that has that name gives way at once.
void give_name(const fs::path& file, const fs::path& name) {
  const fs::path between = temporary_of(file.string());  // which the next save removes
  std::error_code failed;
  if (fs::equivalent(file, name, failed)) return;
  fs::remove(between, failed);
  fs::create_hard_link(fs::canonical(file), between, failed);
  if (failed) fs::copy_file(file, between, fs::copy_options::overwrite_existing);
  fs::rename(between, name);
  fs::remove(between, failed);  // a rename between two names of one file leaves both
}

void keep(const std::string& path) {
  if (!fs::exists(path)) return;
  Progress held;
  try {
    held = read_progress(path);
  } catch (const Error&) {
    return;
  }
  give_name(path, text(path, infix, format("%06lld", static_cast<long long>(held.step))));
}

template <class Work>
void on_first_naming(const Communicator& ranks, const std::string& path, const Work& work) {
  on_first(ranks, [&] {
    try {
      work();
    } catch (const fs::filesystem_error& e) {
      throw Error(text(path, ": cannot be kept as ", path, infix, "N: ", e.code().message()));
    }
    return std::string();
  });
}

/// Empty where it is not named.
std::string setting(const Progress& p, const char* key) {
  const auto found = p.settings.find(key);
  return found == p.settings.end() ? std::string() : found->second;
}

}  // namespace

void keep_checkpoint(const std::string& path, const Communicator& ranks) {
  on_first_naming(ranks, path, [&] { keep(path); });
}

void drop_checkpoints(const std::string& path, int most, const Communicator& ranks) {
  on_first_naming(ranks, path, [&] {
    const std::vector<fs::path> files = kept(path);
    for (std::size_t i = std::size_t(most); i < files.size(); ++i) fs::remove(files[i]);
  });
}

std::optional<Score> read_score(const std::string& path, bool validated, const Progress& mine,
                                const Communicator& ranks) {
  if (on_first(ranks, [&] { return fs::exists(path) ? "yes" : std::string(); }).empty()) return {};
  const Progress held = read_progress(path, ranks);
  const std::string its = setting(held, "model"), ours = setting(mine, "model");
  check(its.empty() || ours.empty() || its == ours, path, ": is the best of ", its,
        ", but this run trains ", ours);
  const std::optional<Score>& score = held.score;
  constexpr const char* by[] = {"by its loss in training", "by evaluation"};
  check(score.has_value(), path, ": expected a checkpoint that was kept as the best");
  check(score->validated == validated, path, ": was kept as the best ", by[score->validated],
        ", this run would judge ", by[validated]);
  // All of a few images are more easily right than most of many.
  const std::string of = setting(held, scored_images), now_of = setting(mine, scored_images);
  check(of.empty() || now_of.empty() || of == now_of, path, ": is the best on ", of,
        validated ? " validation" : " training", " images, but this run has ", now_of);
  return score;
}

}  // namespace lamina
