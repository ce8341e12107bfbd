// Safetensors: the reader, which trusts no byte of the header, and the writer.
#include <lamina/base/error.hpp>
#include <lamina/train/safetensors.hpp>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace lamina {

namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t max_header = 100'000'000;  ///< bytes; the format's own limit
constexpr const char* metadata_key = "__metadata__";

/// Bytes per element, 0 for an unknown type.
std::uint64_t width(std::string_view dtype) {
  struct Width {
    std::string_view dtype;
    std::uint64_t bytes;
  };
  static constexpr Width widths[] = {{"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1},
                                     {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
                                     {"BF16", 2},    {"I32", 4}, {"U32", 4}, {"F32", 4},
                                     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  for (const Width& w : widths)
    if (w.dtype == dtype) return w.bytes;
  return 0;
}

/// A string of a file, fit for one line.
std::string shown(std::string_view s) {
  std::string line(s.substr(0, 80));
  for (char& c : line)
    if (std::uint8_t(c) < 32 || c == 127) c = '?';
  return text('\'', line, s.size() > 80 ? "...'" : "'");
}

/// The header, nested no deeper than the format and with no key twice: the parser alone would take
/// the last of two silently.
json parse_header(const std::string& path, const std::string& header) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start)
      check(depth <= 2, path, ": safetensors header is nested too deeply");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key)
      check(keys.back().insert(value.get<std::string>()).second, path, ": safetensors header has ",
            shown(value.get<std::string>()), " twice");
    return true;
  };
  try {
    return json::parse(header, watch);
  } catch (const json::parse_error& e) {
    throw Error(text(path, ": safetensors header is no JSON (byte ", e.byte + 7, " of the file)"));
  } catch (const json::exception& e) {
    throw Error(text(path, ": safetensors header is no JSON: ", e.what()));
  }
}

/// An array of integers from 0 to the largest int64.
std::vector<std::int64_t> naturals(const json& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  check(found != entry.end() && found->is_array(), where, "expected an array '", key, "'");
  std::vector<std::int64_t> values;
  for (const json& value : *found) {
    check(value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t(INT64_MAX),
          where, "'", key, "' must hold whole numbers from 0 to 2^63 - 1");
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

StoredTensor parse_tensor(const std::string& path, const std::string& name, const json& entry) {
  const std::string where = text(path, ": tensor ", shown(name), ": ");
  check(entry.is_object(), where, "expected an object");
  StoredTensor tensor;
  tensor.name = name;
  const auto dtype = entry.find("dtype");
  check(dtype != entry.end() && dtype->is_string(), where, "expected a string 'dtype'");
  tensor.dtype = dtype->get<std::string>();
  check(width(tensor.dtype) > 0, where, "dtype ", shown(tensor.dtype), " is not known");
  tensor.dims = naturals(entry, "shape", where);
  const auto offsets = naturals(entry, "data_offsets", where);
  check(offsets.size() == 2 && offsets[0] <= offsets[1], where,
        "'data_offsets' must be a begin and an end");
  tensor.begin = std::uint64_t(offsets[0]);
  tensor.bytes = std::uint64_t(offsets[1] - offsets[0]);
  std::uint64_t bytes = width(tensor.dtype);
  for (const std::int64_t d : tensor.dims)
    check(!__builtin_mul_overflow(bytes, std::uint64_t(d), &bytes), where,
          "the shape has more bytes than 2^64");
  check(bytes == tensor.bytes, where, "shape and dtype need ", bytes, " bytes, data_offsets have ",
        tensor.bytes);
  return tensor;
}

template <class From>
void convert(const char* from, std::size_t count, DType as, char* to) {
  visit(as, [&]<Floating To>(To) {
    for (std::size_t i = 0; i < count; ++i) {
      From value;
      std::memcpy(&value, from + i * sizeof(From), sizeof(From));
      const auto wanted = To(double(value));
      std::memcpy(to + i * sizeof(To), &wanted, sizeof(To));
    }
  });
}

using Convert = void (*)(const char*, std::size_t, DType, char*);

Convert converter(std::string_view dtype) {
  return dtype == "F32"    ? convert<float>
         : dtype == "F64"  ? convert<double>
         : dtype == "F16"  ? convert<F16>
         : dtype == "BF16" ? convert<BF16>
         : dtype == "I64"  ? convert<std::int64_t>
         : dtype == "I32"  ? convert<std::int32_t>
                           : nullptr;
}

}  // namespace

std::int64_t StoredTensor::size() const {
  std::int64_t product = 1;
  for (const std::int64_t d : dims) product *= d;
  return product;
}

// ---- reading ---------------------------------------------------------------------------------

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path, File::Mode::read) {
  const std::uint64_t size = file_.size();
  check(size >= 8, path, ": expected a safetensors file, got ", size, " bytes");
  std::uint64_t length = 0;
  file_.read(&length, 8, 0);
  check(length <= max_header, path, ": expected a safetensors file, its header would have ", length,
        " bytes (at most ", max_header, ")");
  check(length <= size - 8, path, ": truncated: the header needs ", length, " bytes, ", size - 8,
        " are there");
  std::string header(length, '\0');
  file_.read(header.data(), length, 8);
  check(header.starts_with('{'), path, ": expected a safetensors file, its header is no object");
  data_ = 8 + length;

  const json parsed = parse_header(path, header);
  for (const auto& [name, entry] : parsed.items()) {
    if (name != metadata_key) {
      tensors_.push_back(parse_tensor(path, name, entry));
      continue;
    }
    check(entry.is_object(), path, ": ", metadata_key, " is no object");
    for (const auto& [key, value] : entry.items()) {
      check(value.is_string(), path, ": ", metadata_key, ' ', shown(key), " is no string");
      metadata_.emplace(key, value.get<std::string>());
    }
  }

  // The data of the tensors must fill the file, one after the other.
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  std::uint64_t end = 0;
  for (const StoredTensor& t : tensors_) {
    check(t.begin == end, path, ": tensor ", shown(t.name), " begins at byte ", t.begin,
          " of the data, expected ", end, ": tensors must neither overlap nor leave holes");
    end += t.bytes;
  }
  check(end == size - data_, path, end > size - data_ ? ": truncated" : ": too long", ": expected ",
        end, " bytes of data, got ", size - data_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

bool SafetensorsFile::readable(const StoredTensor& tensor) {
  return converter(tensor.dtype) != nullptr;
}

void SafetensorsFile::read(const StoredTensor& tensor, std::int64_t first, std::int64_t count,
                           DType as, void* to) const {
  check(is_floating(as), path(), ": tensors are read as floating point numbers, not ", name(as));
  check(first >= 0 && count >= 0 && first <= tensor.size() - count, path(), ": tensor ",
        shown(tensor.name), " has ", tensor.size(), " elements, asked for ", count, " from ",
        first);
  const std::uint64_t from = width(tensor.dtype), begin = data_ + tensor.begin;
  if (tensor.dtype == stored_name(as))
    return file_.read(to, std::size_t(count) * from, begin + std::uint64_t(first) * from);
  const Convert to_wanted = converter(tensor.dtype);
  check(to_wanted, path(), ": tensor ", shown(tensor.name), " is ", tensor.dtype,
        ": expected F64, F32, F16, BF16, I64 or I32");
  constexpr std::int64_t piece = 1 << 17;  // elements that are converted at a time
  std::vector<char> raw(std::size_t(std::min(piece, count)) * from);
  for (std::int64_t done = 0; done < count; done += piece) {
    const auto n = std::size_t(std::min(piece, count - done));
    file_.read(raw.data(), n * from, begin + std::uint64_t(first + done) * from);
    to_wanted(raw.data(), n, as, static_cast<char*>(to) + std::size_t(done) * size_of(as));
  }
}

// ---- writing ---------------------------------------------------------------------------------

namespace {

/// Eight bytes of length and the JSON, padded so that the data are aligned.
std::string make_header(const std::string& path, const std::vector<StoredTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::set<std::string> names = {metadata_key};
  for (const StoredTensor& t : tensors) {
    check(names.insert(t.name).second, path, ": two tensors are named ", shown(t.name));
    // Straight into the last place: ordered_json would look for the name among all others.
    nlohmann::ordered_json entry;
    entry["dtype"] = t.dtype;
    entry["shape"] = t.dims;
    entry["data_offsets"] = {t.begin, t.begin + t.bytes};
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(t.name, std::move(entry));
  }
  std::string body;
  try {
    body = header.dump();
  } catch (const json::exception&) {
    throw Error(text(path, ": a name of a tensor or setting is no UTF-8"));
  }
  body.resize((body.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = body.size();
  check(length <= max_header, path, ": the safetensors header would have ", length,
        " bytes, at most ", max_header, " are allowed");
  return std::string(reinterpret_cast<const char*>(&length), 8) + body;
}

/// A full disk may be the reason for its errors: they say how much is needed.
template <class Work>
void needing(std::uint64_t bytes, Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    throw Error(text(e.what(), " (", bytes, " bytes are needed)"), e.where());
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<StoredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)) {
  for (StoredTensor& t : tensors) {
    const std::uint64_t element = width(t.dtype);
    check(element > 0, path_, ": tensor ", shown(t.name), ": dtype ", shown(t.dtype),
          " is not known");
    t.begin = data_, t.bytes = element;
    for (const std::int64_t d : t.dims)
      check(d >= 0 && !__builtin_mul_overflow(t.bytes, std::uint64_t(d), &t.bytes), path_,
            ": tensor ", shown(t.name), ": extent ", d, " is not possible");
    check(t.begin % element == 0, path_, ": tensor ", shown(t.name),
          " would not be aligned: expected tensors with wider elements first");
    check(!__builtin_add_overflow(data_, t.bytes, &data_), path_, ": more bytes than 2^64");
  }
  const std::string header = make_header(path_, tensors, metadata);
  header_ = header.size();

  struct stat status = {};
  check(::stat(path_.c_str(), &status) != 0 || S_ISREG(status.st_mode), path_,
        ": cannot save here: expected a regular file or none");
  file_ = NewFile(path_, "not saved");
  needing(header_ + data_, [&] {
    file_.reserve(header_ + data_);
    file_.write(header.data(), header.size());
  });
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  check(bytes <= data_ - written_, path_, ": more data than the ", data_, " bytes of its tensors");
  needing(header_ + data_, [&] { file_.write(data, bytes); });
  written_ += bytes;
}

void SafetensorsWriter::commit() {
  check(written_ == data_, path_, ": not saved: got ", written_, " of ", data_, " bytes of data");
  needing(header_ + data_, [&] { file_.sync(); });
  file_.commit();
}

}  // namespace lamina
