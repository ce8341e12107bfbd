// Checkpoints: a network's tensors to and from safetensors, in plain layout, one at a time.
#include "comm/board.hpp"

#include <lamina/base/file.hpp>
#include <lamina/comm/alike.hpp>
#include <lamina/network/placed.hpp>
#include <lamina/train/checkpoint.hpp>
#include <lamina/train/detail/slots.hpp>
#include <lamina/train/safetensors.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>

namespace lamina {

namespace {

using namespace detail;
using nlohmann::json;

constexpr const char* version_key = "lamina.checkpoint";
constexpr const char* version = "1";
constexpr std::string_view setting_prefix = "setting.", option_prefix = "option.";
constexpr std::int64_t piece = 1 << 21;  ///< elements that are read and sent at a time

/// What `work` returns on rank 0, on all ranks; what it throws there, all ranks throw.
template <class Work>
json from_first(const Communicator& ranks, Work&& work) {
  return json::parse(on_first(
      ranks, [&] { return json(work()).dump(-1, ' ', false, json::error_handler_t::replace); }));
}

bool is_state(std::string_view name) {
  return name.starts_with("optimizer.") && name.find('/') != name.npos;
}
bool is_local(std::string_view name) { return name.starts_with(local_prefix); }

std::string dims_text(const std::vector<std::int64_t>& dims) {
  if (dims.empty()) return "scalar";
  std::string s;
  for (const std::int64_t d : dims) s += (s.empty() ? "" : "x") + text(d);
  return s;
}

// ---- progress --------------------------------------------------------------------------------

template <class T>
std::string digits(T value) {  // the shortest that reads back as the same value
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

constexpr std::pair<const char*, double LossScale::*> loss_scale_keys[] = {
    {"loss_scale", &LossScale::scale},
    {"loss_scale.good", &LossScale::good},
    {"loss_scale.skipped", &LossScale::skipped},
    {"loss_scale.stuck", &LossScale::stuck}};

std::map<std::string, std::string> to_metadata(const Progress& p) {
  std::map<std::string, std::string> m = {
      {"format", "pt"},  // other readers ask whose names and shapes these are: PyTorch's
      {version_key, version},
      {"step", digits(p.step)},
      {"epoch", digits(p.epoch)},
      {"batch", digits(p.batch)},
      {"seed", digits(p.seed)},
      {"rate", digits(p.rate)},
      {"epoch.loss", digits(p.loss)},
      {"epoch.top1", digits(p.top1)}};
  if (p.images > 0) m.emplace("epoch.images", digits(p.images));
  if (p.evaluation_due) m.emplace("evaluation", "due");
  for (const auto& [key, value] : p.settings) m.emplace(text(setting_prefix, key), value);
  for (const auto& [key, value] : p.options) m.emplace(text(option_prefix, key), value);
  if (p.loss_scale)
    for (const auto& [key, member] : loss_scale_keys) m.emplace(key, digits(*p.loss_scale.*member));
  if (!p.score) return m;
  m.emplace("score.of", p.score->validated ? "validation" : "training");
  m.emplace("score.loss", digits(p.score->loss));
  m.emplace("score.top1", digits(p.score->top1));
  return m;
}

template <class T>
void parse(const std::string& path, const std::map<std::string, std::string>& metadata,
           const char* key, T& value) {
  const auto found = metadata.find(key);
  check(found != metadata.end(), path, ": its metadata lack '", key, "'");
  const std::string& s = found->second;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  check(error == std::errc() && end == s.data() + s.size(), path,
        ": its metadata have no number as ", key);
}

Progress to_progress(const std::string& path, const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(version_key);
  check(found != metadata.end(), path,
        ": holds parameters but no training to resume: use it to initialize a network");
  check(found->second == version, path, ": expected a checkpoint of version ", version,
        ", it says another");
  Progress p;
  parse(path, metadata, "step", p.step);
  parse(path, metadata, "epoch", p.epoch);
  parse(path, metadata, "batch", p.batch);
  parse(path, metadata, "seed", p.seed);
  parse(path, metadata, "rate", p.rate);
  if (metadata.contains("epoch.loss")) {
    parse(path, metadata, "epoch.loss", p.loss);
    parse(path, metadata, "epoch.top1", p.top1);
  } else {  // nobody knows what this epoch's mean will be
    p.loss = p.top1 = std::numeric_limits<double>::quiet_NaN();
  }
  if (metadata.contains("loss_scale")) {
    p.loss_scale.emplace();
    for (const auto& [key, member] : loss_scale_keys)
      parse(path, metadata, key, *p.loss_scale.*member);
  }
  if (metadata.contains("epoch.images")) parse(path, metadata, "epoch.images", p.images);
  p.evaluation_due = metadata.contains("evaluation");
  check(p.step >= 0 && p.epoch >= 0 && p.batch >= 0, path,
        ": its metadata have a negative step, epoch or batch");
  for (const auto& [key, value] : metadata)
    if (key.starts_with(setting_prefix))
      p.settings.emplace(key.substr(setting_prefix.size()), value);
    else if (key.starts_with(option_prefix))
      p.options.emplace(key.substr(option_prefix.size()), value);
  if (const auto of = metadata.find("score.of"); of != metadata.end()) {
    p.score = {.validated = of->second == "validation"};
    parse(path, metadata, "score.loss", p.score->loss);
    parse(path, metadata, "score.top1", p.score->top1);
  }
  return p;
}

// ---- loading ---------------------------------------------------------------------------------

/// "2 missing (fc.weight, fc.bias)", with a comma in front unless it is the first.
void add_list(std::string& to, const std::vector<std::string>& names, const char* what) {
  if (names.empty()) return;
  constexpr std::size_t shown = 3;
  to += text(to.empty() ? "" : ", ", names.size(), ' ', what, " (");
  for (std::size_t i = 0; i < names.size() && i < shown; ++i) to += (i ? ", " : "") + names[i];
  to += names.size() > shown ? ", ...)" : ")";
}

/// Takes out the slots of local values that the file does not have, or not of as many ranks, and
/// returns the names of these values; also of those that the file alone has by rank.
std::set<std::string> take_out_local(const SafetensorsFile& file, std::vector<Slot>& slots) {
  std::set<std::string> names;
  for (const StoredTensor& t : file.tensors())
    if (is_local(t.name)) names.insert(t.name.substr(local_prefix.size()));
  std::erase_if(slots, [&](const Slot& slot) {
    if (!slot.local) return false;
    const StoredTensor* t = file.find(slot.name);
    const bool fits = t && t->dims == slot.dims;
    const std::string name = slot.name.substr(local_prefix.size());
    fits ? void(names.erase(name)) : void(names.insert(name));
    return !fits;
  });
  return names;
}

/// Compares the file with the network's slots; takes those out that the file cannot fill.
Unmatched match(const SafetensorsFile& file, std::vector<Slot>& slots, bool with_states) {
  Unmatched u;
  std::set<std::string> wanted;
  for (const Slot& slot : slots) wanted.insert(slot.name);
  for (const StoredTensor& t : file.tensors())
    if (!wanted.contains(t.name) && !t.name.ends_with("num_batches_tracked") &&
        (with_states || !is_state(t.name)) && !is_local(t.name))
      u.unexpected.push_back(t.name);
  std::erase_if(slots, [&](const Slot& slot) {
    const StoredTensor* t = file.find(slot.name);
    if (!t)
      u.missing.push_back(slot.name);
    else if (t->dims != slot.dims)
      u.reshaped.push_back(text(slot.name, ' ', dims_text(t->dims), '/', dims_text(slot.dims)));
    else
      check(file.readable(*t), file.path(), ": ", t->name, " is ", t->dtype,
            ": expected floating point or integers of 32 or 64 bits");
    return !t || t->dims != slot.dims;
  });
  return u;
}

/// Fills a slot's blocks on all ranks. `file` is open on rank 0 only.
void load_slot(const std::optional<SafetensorsFile>& file, const Slot& slot,
               const PlacedNetwork& network, const Communicator& ranks) {
  const PlaceOptions& placing = network.placing();
  const bool held = slot.held(placing.ranks.rank());
  const Tensor plain = held ? Tensor(slot.mine.shape, slot.mine.dtype) : Tensor();
  const Box& block = slot.blocks[std::size_t(placing.ranks.rank())];
  const std::int64_t size = slot.whole.shape.size();
  const std::size_t element = size_of(slot.whole.dtype);
  for (std::int64_t first = 0; first < size; first += piece) {
    const std::int64_t count = std::min(piece, size - first);
    std::string bytes, failure;
    if (file) {
      try {
        bytes.resize(std::size_t(count) * element);
        file->read(*file->find(slot.name), first, count, slot.whole.dtype, bytes.data());
      } catch (const std::exception& e) {
        bytes.clear(), failure = e.what();
      }
    }
    bytes = ranks.broadcast_text(std::move(bytes));
    if (bytes.empty()) throw Error(ranks.broadcast_text(std::move(failure)));
    if (!held) continue;
    for_runs(block, Box::of(slot.whole.shape), block,
             [&](std::int64_t at, std::int64_t i, std::int64_t length) {
               const Part got = common(Part{at, length}, Part{first, count});
               if (got.size > 0)
                 std::memcpy(plain.as<char>() + std::size_t(i + got.begin - at) * element,
                             bytes.data() + std::size_t(got.begin - first) * element,
                             std::size_t(got.size) * element);
             });
  }
  if (held) write_slot(slot, network, plain);
}

// ---- saving ----------------------------------------------------------------------------------

/// The whole of a slot, plain, on rank 0: there it takes the room of the whole, of a block and a
/// few MB, elsewhere that of the block. Collective unless rank 0 holds it whole.
Tensor gather(const Slot& slot, const Communicator& ranks, SlotReader& reader) {
  Tensor plain = slot.held(ranks.rank()) ? Tensor(slot.mine.shape, slot.mine.dtype) : Tensor();
  reader.read(slot, plain);
  if (slot.held_whole(0)) return plain;

  const bool first_rank = ranks.rank() == 0;
  Tensor whole = first_rank ? Tensor(slot.whole) : Tensor();
  const Tensor arrived = first_rank ? Tensor({1, piece, 1, 1}, slot.whole.dtype) : Tensor();
  const std::size_t element = size_of(slot.whole.dtype);
  Stream stream;
  for (int from = 0; from < ranks.size(); ++from) {
    const Box& block = slot.blocks[std::size_t(from)];
    if (std::find(slot.blocks.begin(), slot.blocks.end(), block) - slot.blocks.begin() != from)
      continue;  // a copy
    for (std::int64_t first = 0; first < block.size(); first += piece) {
      const Form form{{1, std::min(piece, block.size() - first), 1, 1}, slot.whole.dtype, {}};
      const bool mine = ranks.rank() == from;
      const View sent(mine ? plain.as<char>() + std::size_t(first) * element : nullptr, form);
      const View got(from == 0 ? sent.data : arrived.view().data, form);
      if (from > 0)
        ranks.exchange(stream, Pass::update, sent, mine ? 0 : -1, got, first_rank ? from : -1)
            .wait(stream);
      if (first_rank)
        for_runs(block, {first, form.shape.size()}, Box::of(slot.whole.shape), block,
                 [&](std::int64_t at, std::int64_t i, std::int64_t length) {
                   std::memcpy(whole.as<char>() + std::size_t(at) * element,
                               got.as<char>() + std::size_t(i - first) * element,
                               std::size_t(length) * element);
                 });
    }
  }
  return whole;
}

SafetensorsWriter writer_of(const std::string& path, const std::vector<Slot>& slots,
                            const Progress& progress) {
  std::vector<StoredTensor> tensors;
  for (const Slot& s : slots)
    tensors.push_back({s.name, std::string(stored_name(s.whole.dtype)), s.dims});
  return {path, std::move(tensors), to_metadata(progress)};
}

/// That the training writes checkpoints, the last one of this step, or none yet: what a launcher of
/// the job may count on.
void tell_launcher(const std::string& path, std::int64_t step) {
  const detail::BoardMap board = in_memory(path) ? detail::BoardMap() : detail::reach_board();
  if (!board) return;
  const bool first = board->saves != board->training;
  if (first || step > 0) board->saved = step;
  if (!first) return;  // of files under other names the best one is not meant
  const std::string whole = std::filesystem::absolute(path).string();
  const bool fits = whole.size() < board->save_path.size();
  std::snprintf(board->save_path.data(), board->save_path.size(), "%s", fits ? whole.c_str() : "");
  board->saves = board->training.load();
}

}  // namespace

void try_checkpoint(const std::string& path, const PlacedNetwork& network,
                    const Communicator& ranks) {
  const std::vector<Slot> slots = slots_of(network, true);
  from_first(ranks, [&] {
    writer_of(path, slots, {});
    tell_launcher(path, 0);
    return nullptr;
  });
}

void save_checkpoint(const std::string& path, const PlacedNetwork& network,
                     const Progress& progress, const Communicator& ranks) {
  const std::vector<Slot> slots = slots_of(network, true);
  const auto alone = [](const Slot& s) { return !s.together; };
  check(ranks.size() == network.placing().ranks.size() || std::ranges::all_of(slots, alone), path,
        ": expected the ", network.placing().ranks.size(), " ranks of the network to save it, got ",
        ranks.size());
  std::optional<SafetensorsWriter> writer;  // on rank 0
  from_first(ranks, [&] {
    writer = writer_of(path, slots, progress);
    return nullptr;
  });
  std::exception_ptr failure;
  SlotReader reader(network);
  const auto fail = [&] {
    if (failure) std::rethrow_exception(failure);
    return nullptr;
  };
  for (const Slot& s : slots) {
    if (!alone(s)) from_first(ranks, fail);  // before the others send what nobody writes
    if (alone(s) && (!writer || failure)) continue;
    const Tensor whole = gather(s, network.placing().ranks, reader);
    if (!writer) continue;
    try {
      writer->write(whole.as<char>(), whole.bytes());
    } catch (...) {
      failure = std::current_exception();
    }
  }
  from_first(ranks, [&] {
    fail();
    writer->commit();
    tell_launcher(path, progress.step);
    return nullptr;
  });
}

std::string Unmatched::text() const {
  std::string s;
  add_list(s, missing, "missing");
  add_list(s, unexpected, "unexpected");
  add_list(s, reshaped, "of another shape, file/network");
  return s;
}

Resumed load_checkpoint(const std::string& path, PlacedNetwork& network,
                        const Communicator& ranks) {
  check(!network.borrows(), path, ": the network has the parameters of another one: expected that");
  std::vector<Slot> slots = slots_of(network, true);
  std::optional<SafetensorsFile> file;
  const json answer = from_first(ranks, [&] {
    file.emplace(path);
    to_progress(path, file->metadata());
    const std::set<std::string> averaged = take_out_local(*file, slots);
    const Unmatched u = match(*file, slots, true);
    check(u.empty(), path, ": checkpoint for another model or optimizer: ", u.text());
    return json{file->metadata(), averaged};
  });
  const auto averaged = answer[1].get<std::set<std::string>>();
  std::erase_if(slots, [&](const Slot& s) {
    return s.local && averaged.contains(s.name.substr(local_prefix.size()));
  });
  network.changed(), network.values_are_new();
  for (const Slot& slot : slots) load_slot(file, slot, network, ranks);
  if (averaged.empty()) network.kept_is_known();
  return {to_progress(path, answer[0].get<std::map<std::string, std::string>>()),
          {averaged.begin(), averaged.end()}};
}

Progress read_progress(const std::string& path, const Communicator& ranks) {
  const json metadata = from_first(ranks, [&] {
    const SafetensorsFile file(path);
    to_progress(path, file.metadata());
    return file.metadata();
  });
  return to_progress(path, metadata.get<std::map<std::string, std::string>>());
}

Unmatched load_parameters(const std::string& path, PlacedNetwork& network, bool strict,
                          const Communicator& ranks) {
  check(!network.borrows(), path, ": the network has the parameters of another one: expected that");
  std::vector<Slot> slots = slots_of(network, false);
  std::optional<SafetensorsFile> file;
  const json answer = from_first(ranks, [&] {
    file.emplace(path);
    const Unmatched u = match(*file, slots, false);
    check(!strict || u.empty(), path, ": checkpoint for another model: ", u.text());
    check(!slots.empty(), path, ": nothing in it fits the network: ", u.text());
    check((u.missing.empty() && u.reshaped.empty()) || !network.changes()->of_one_worker, path,
          ": some parameters are not in it, and the network's running statistics are those of the "
          "worker that ran last: expected average_kept() before");
    std::vector<std::string> names;
    for (const Slot& s : slots) names.push_back(s.name);
    return json{names, u.missing, u.unexpected, u.reshaped};
  });
  const auto names = answer[0].get<std::set<std::string>>();
  std::erase_if(slots, [&](const Slot& s) { return !names.contains(s.name); });
  network.changed(), network.values_are_new();
  for (const Slot& slot : slots) load_slot(file, slot, network, ranks);
  return {answer[1], answer[2], answer[3]};
}

}  // namespace lamina
