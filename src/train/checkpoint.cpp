// Checkpoints: a network's tensors to and from safetensors, in plain layout, one at a time.
#include <lamina/network/network.hpp>
#include <lamina/train/checkpoint.hpp>
#include <lamina/train/safetensors.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

namespace lamina {

namespace {

using nlohmann::json;

constexpr const char* version_key = "lamina.checkpoint";
constexpr const char* version = "1";
constexpr std::string_view setting_prefix = "setting.";
constexpr std::int64_t piece = 1 << 21;  ///< elements that are read and sent at a time

/// What `work` returns on rank 0, on all ranks; what it throws there, all ranks throw.
template <class Work>
json from_first(const Communicator& ranks, Work&& work) {
  json answer;
  if (ranks.rank() == 0) {
    try {
      answer["value"] = work();
    } catch (const std::exception& e) {
      answer["error"] = e.what();
    }
  }
  answer = json::parse(
      ranks.broadcast_text(answer.dump(-1, ' ', false, json::error_handler_t::replace)));
  if (answer.contains("error")) throw Error(answer["error"].get<std::string>());
  return answer["value"];
}

/// A tensor of the network and its name in files.
struct Slot {
  std::string name;
  std::vector<std::int64_t> dims;
  View view;
};

std::vector<Slot> slots_of(const Network& network, bool with_states) {
  check(network.placed(), "the network must be placed before it is saved or loaded");
  std::vector<Slot> slots;
  std::size_t most = 0;
  for (const auto& [name, p, step] : network.parameters()) {
    std::int64_t size = 1;
    for (const std::int64_t d : p->dims) size *= d;
    check(size == p->size(), name, ": its dims have ", size, " elements, its form ", p->form);
    slots.push_back({name, p->dims, p->value});
    most = std::max(most, p->states.size());
  }
  for (std::size_t i = 0; i < most && with_states; ++i)
    for (const auto& [name, p, step] : network.parameters())
      if (i < p->states.size())
        slots.push_back({text("optimizer.", i, '/', name), p->dims, p->states[i]});
  // The format wants wide elements first.
  std::stable_sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
    return size_of(a.view.dtype) > size_of(b.view.dtype);
  });
  return slots;
}

bool is_state(std::string_view name) {
  return name.starts_with("optimizer.") && name.find('/') != name.npos;
}

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

std::map<std::string, std::string> to_metadata(const Progress& p) {
  std::map<std::string, std::string> m = {
      {"format", "pt"},  // other readers ask whose names and shapes these are: PyTorch's
      {version_key, version},     {"step", digits(p.step)}, {"epoch", digits(p.epoch)},
      {"batch", digits(p.batch)}, {"seed", digits(p.seed)}, {"rate", digits(p.rate)}};
  for (const auto& [key, value] : p.settings) m.emplace(text(setting_prefix, key), value);
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
  check(p.step >= 0 && p.epoch >= 0 && p.batch >= 0, path,
        ": its metadata have a negative step, epoch or batch");
  for (const auto& [key, value] : metadata)
    if (key.starts_with(setting_prefix))
      p.settings.emplace(key.substr(setting_prefix.size()), value);
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

std::string describe(const Unmatched& u) {
  std::string s;
  add_list(s, u.missing, "missing");
  add_list(s, u.unexpected, "unexpected");
  add_list(s, u.reshaped, "of another shape, file/network");
  return s;
}

/// Compares the file with the network's slots; takes those out that the file cannot fill.
Unmatched match(const SafetensorsFile& file, std::vector<Slot>& slots, bool with_states) {
  Unmatched u;
  std::set<std::string> wanted;
  for (const Slot& slot : slots) wanted.insert(slot.name);
  for (const StoredTensor& t : file.tensors())
    if (!wanted.contains(t.name) && !t.name.ends_with("num_batches_tracked") &&
        (with_states || !is_state(t.name)))
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

/// Fills a slot on all ranks. `file` is open on rank 0 only.
void load_slot(const std::optional<SafetensorsFile>& file, const Slot& slot, const Backend& backend,
               const Communicator& ranks) {
  const Tensor plain(slot.view.shape, slot.view.dtype);
  const std::int64_t size = slot.view.shape.size();
  const std::size_t element = size_of(slot.view.dtype);
  for (std::int64_t first = 0; first < size; first += piece) {
    const std::int64_t count = std::min(piece, size - first);
    std::string bytes, failure;
    if (file) {
      try {
        bytes.resize(std::size_t(count) * element);
        file->read(*file->find(slot.name), first, count, slot.view.dtype, bytes.data());
      } catch (const std::exception& e) {
        bytes.clear(), failure = e.what();
      }
    }
    bytes = ranks.broadcast_text(std::move(bytes));
    if (bytes.empty()) throw Error(ranks.broadcast_text(std::move(failure)));
    std::memcpy(plain.as<char>() + std::size_t(first) * element, bytes.data(), bytes.size());
  }
  backend.copy(plain, slot.view);
}

}  // namespace

void save_checkpoint(const std::string& path, const Network& network, const Progress& progress,
                     const Communicator& ranks) {
  const std::vector<Slot> slots = slots_of(network, true);
  from_first(ranks, [&] {
    std::vector<StoredTensor> tensors;
    for (const Slot& s : slots)
      tensors.push_back({s.name, std::string(stored_name(s.view.dtype)), s.dims});
    SafetensorsWriter writer(path, std::move(tensors), to_metadata(progress));
    for (const Slot& s : slots) {
      const Tensor plain(s.view.shape, s.view.dtype);
      network.placing().backend->copy(s.view, plain);
      writer.write(plain.as<char>(), plain.bytes());
    }
    writer.commit();
    return nullptr;
  });
}

Progress load_checkpoint(const std::string& path, Network& network, const Communicator& ranks) {
  std::vector<Slot> slots = slots_of(network, true);
  std::optional<SafetensorsFile> file;
  const json metadata = from_first(ranks, [&] {
    file.emplace(path);
    to_progress(path, file->metadata());
    const Unmatched u = match(*file, slots, true);
    check(u.empty(), path, ": checkpoint for another model or optimizer: ", describe(u));
    return file->metadata();
  });
  for (const Slot& slot : slots) load_slot(file, slot, *network.placing().backend, ranks);
  return to_progress(path, metadata.get<std::map<std::string, std::string>>());
}

Progress read_progress(const std::string& path, const Communicator& ranks) {
  const json metadata = from_first(ranks, [&] {
    const SafetensorsFile file(path);
    to_progress(path, file.metadata());
    return file.metadata();
  });
  return to_progress(path, metadata.get<std::map<std::string, std::string>>());
}

Unmatched load_parameters(const std::string& path, Network& network, bool strict,
                          const Communicator& ranks) {
  std::vector<Slot> slots = slots_of(network, false);
  std::optional<SafetensorsFile> file;
  const json answer = from_first(ranks, [&] {
    file.emplace(path);
    const Unmatched u = match(*file, slots, false);
    check(!strict || u.empty(), path, ": checkpoint for another model: ", describe(u));
    check(!slots.empty(), path, ": nothing in it fits the network: ", describe(u));
    std::vector<std::string> names;
    for (const Slot& s : slots) names.push_back(s.name);
    return json{names, u.missing, u.unexpected, u.reshaped};
  });
  const auto names = answer[0].get<std::set<std::string>>();
  std::erase_if(slots, [&](const Slot& s) { return !names.contains(s.name); });
  for (const Slot& slot : slots) load_slot(file, slot, *network.placing().backend, ranks);
  return {answer[1], answer[2], answer[3]};
}

}  // namespace lamina
