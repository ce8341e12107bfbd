// What a program lacks that is built with LAMINA_HEADER_ONLY: whatever calls an SDK or the
// operating system, or reads or writes files. Each says so in one line.
#pragma once

#include <lamina/base/file.hpp>
#include <lamina/base/signal_thread.hpp>
#include <lamina/base/threads.hpp>
#include <lamina/comm/mpi.hpp>
#include <lamina/comm/nccl.hpp>
#include <lamina/comm/world.hpp>
#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/ceilings.hpp>
#include <lamina/kernels/instruction_set.hpp>
#include <lamina/kernels/samples.hpp>
#include <lamina/plan/calibrate.hpp>
#include <lamina/plan/cluster.hpp>
#include <lamina/plan/measured_times.hpp>
#include <lamina/plan/plan.hpp>
#include <lamina/plan/prediction.hpp>
#include <lamina/plan/validation.hpp>
#include <lamina/profile/counters.hpp>
#include <lamina/profile/detail/late.hpp>
#include <lamina/profile/machine.hpp>
#include <lamina/profile/report.hpp>
#include <lamina/profile/trace.hpp>
#include <lamina/profile/usage.hpp>
#include <lamina/tensor/memory_space.hpp>
#include <lamina/train/json_log.hpp>
#include <lamina/train/kept.hpp>
#include <lamina/train/safetensors.hpp>
#include <lamina/train/snapshot.hpp>
#include <lamina/train/trainer.hpp>

#include <algorithm>
#include <thread>

namespace lamina {

namespace detail {

[[noreturn]] inline void absent(const char* what) {
  throw Error(text(what, ": link the compiled library, without LAMINA_HEADER_ONLY"));
}

inline constexpr const char* no_files = "this program was built without files";
inline constexpr const char* no_checkpoints = "checkpoints are files";
inline constexpr const char* no_images = "images are files";
inline constexpr const char* no_plans = "plans are read and written as JSON";
inline constexpr const char* no_clusters = "clusters are read and written as JSON";
inline constexpr const char* no_times = "measured times are read and written as JSON";
inline constexpr const char* no_reports = "reports are files and drawings";
inline constexpr const char* no_ceilings = "ceilings are measured by compiled loops";

}  // namespace detail

// ---- ranks, threads, what the system tells --------------------------------------------------

inline std::string mpi_library() { return {}; }
inline bool mpi_outlives() { return false; }
inline std::unique_ptr<detail::Job> detail::start_mpi(int&, char**&) {
  throw Error(
      "started by an MPI launcher, but this program was built with LAMINA_HEADER_ONLY, and has its "
      "ranks as threads: start it alone with LAMINA_RANKS=N, or link the compiled library");
}
inline bool has_nccl() { return false; }
inline std::shared_ptr<Transport> nccl_transport(std::shared_ptr<Transport>, Device) {
  detail::absent("NCCL is not built in");
}

inline std::size_t available_memory() { return HostMemory::pages(_SC_AVPHYS_PAGES); }
inline int processors() { return std::max(1, int(std::thread::hardware_concurrency())); }
inline void unbind_thread() {}
struct SignalThread::Impl {};  // where nothing sets the stack pointer, handlers may run anywhere
inline SignalThread::SignalThread() = default;
inline SignalThread::SignalThread(std::initializer_list<int>) {}
inline SignalThread::~SignalThread() = default;
inline bool bind_threads(int, int) { return false; }
inline void give_way() {}
inline int threads() { return 1; }  // of the reference kernels
inline void set_threads(int) {}
inline int default_threads(int, int) { return 1; }
inline void convert_samples(const float* from, std::size_t count, DType type, void* to) {
  visit(type, [&]<Floating T>(T) {
    std::transform(from, from + count, static_cast<T*>(to), [](float v) { return T(v); });
  });
}
inline void convert_pixels(const Pixels& from, const Shape& shape, std::size_t first,
                           std::size_t count, DType type, void* to) {
  visit(type, [&]<Floating T>(T) {
    for (std::size_t i = 0; i < count; ++i)
      static_cast<T*>(to)[i] = T(from.value(shape, first + i));
  });
}

inline Usage usage() { return {-1, -1, -1, -1, -1}; }
inline std::unique_ptr<Counters> open_counters(std::string* why) {
  if (why) *why = "counters are read by the compiled library";
  return nullptr;
}
inline std::string detail::clock_name(const char*) { return "one process"; }

// ---- back ends, ceilings --------------------------------------------------------------------

inline bool has_onednn() { return false; }
inline std::shared_ptr<const Backend> onednn_backend(Choice) {
  detail::absent("oneDNN is not built in, only the back end 'reference'");
}
inline std::string in_words(InstructionSet) { return "no instruction set"; }
inline InstructionSet instruction_set() { return InstructionSet::none; }
inline void limit_instruction_set(InstructionSet) {}
inline bool has_cuda() { return false; }
inline int cuda_devices() { return 0; }
inline std::shared_ptr<const Backend> cuda_backend(int, Choice) {
  detail::absent("CUDA is not built in, only the back end 'reference'");
}
inline std::unique_ptr<Listener> cuda_ranges() { return nullptr; }
inline std::shared_ptr<Verdicts> kept_verdicts() { return std::make_shared<Verdicts>(); }

inline std::vector<CacheLevel> cache_levels() { return {}; }
inline std::vector<std::string> instruction_sets(DType) { return {}; }
inline double fma_rate(std::string_view, DType, const Slices&) {
  detail::absent(detail::no_ceilings);
}
inline Bandwidths bandwidths(std::size_t, const Slices&) { detail::absent(detail::no_ceilings); }
inline const CeilingLoops& processor_loops() { detail::absent(detail::no_ceilings); }
inline Machine measure_machine(const World&, const Backend&) {
  detail::absent(detail::no_ceilings);
}
inline Machine cached_machine(const World&, const Backend&, bool) {
  detail::absent(detail::no_ceilings);
}
inline Machine cached_machine(const World&, const Backend&, bool*) {
  detail::absent(detail::no_ceilings);
}

inline Cluster measure_cluster(const World&, const Backend&) {
  detail::absent(detail::no_ceilings);
}
inline void load_measured(MeasuredTimes&, const World&, const Backend&) {}  // nothing is kept
inline void keep_measured(const MeasuredTimes&, const World&, const Backend&) {}

// ---- files ----------------------------------------------------------------------------------

inline File::File(std::string, Mode) { detail::absent(detail::no_files); }
inline File::~File() = default;
inline std::uint64_t File::size() const { detail::absent(detail::no_files); }
inline void File::read(void*, std::size_t, std::uint64_t) const {
  detail::absent(detail::no_files);
}
inline void File::write(const void*, std::size_t) { detail::absent(detail::no_files); }
inline void File::write_at(std::uint64_t, const void*, std::size_t) {
  detail::absent(detail::no_files);
}
inline void File::cut(std::uint64_t) { detail::absent(detail::no_files); }
inline File::Lock File::lock() { detail::absent(detail::no_files); }
inline void File::reserve(std::uint64_t) { detail::absent(detail::no_files); }
inline void File::sync_and_close() { detail::absent(detail::no_files); }
inline bool in_memory(const std::string&) { return false; }
inline MemoryFile::MemoryFile() { detail::absent(detail::no_files); }
inline MemoryFile::~MemoryFile() = default;
inline NewFile::NewFile(std::string, const char*) { detail::absent(detail::no_files); }
inline NewFile& NewFile::operator=(NewFile&&) noexcept { return *this; }
inline NewFile::~NewFile() = default;
inline void NewFile::reserve(std::uint64_t) { detail::absent(detail::no_files); }
inline void NewFile::write(const void*, std::size_t) { detail::absent(detail::no_files); }
inline void NewFile::sync() { detail::absent(detail::no_files); }
inline void NewFile::commit() { detail::absent(detail::no_files); }
inline std::string temporary_of(const std::string&) { detail::absent(detail::no_files); }
inline void write_file(const std::string&, const std::string&) { detail::absent(detail::no_files); }
inline bool names_a_file(const std::string&) { detail::absent(detail::no_files); }
inline std::string read_file(const std::string&, std::uint64_t) {
  detail::absent(detail::no_files);
}

inline void save_checkpoint(const std::string&, const PlacedNetwork&, const Progress&,
                            const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline void try_checkpoint(const std::string&, const PlacedNetwork&, const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline Resumed load_checkpoint(const std::string&, PlacedNetwork&, const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline Progress read_progress(const std::string&, const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline std::string Unmatched::text() const { return {}; }
inline Unmatched load_parameters(const std::string&, PlacedNetwork&, bool, const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline void keep_checkpoint(const std::string&, const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline void drop_checkpoints(const std::string&, int, const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline std::optional<Score> read_score(const std::string&, bool, const Progress&,
                                       const Communicator&) {
  detail::absent(detail::no_checkpoints);
}
inline std::shared_ptr<Snapshots> Snapshots::find(const Communicator&) { return nullptr; }
inline std::int64_t StoredTensor::size() const { detail::absent(detail::no_checkpoints); }
inline SafetensorsFile::SafetensorsFile(const std::string&) {
  detail::absent(detail::no_checkpoints);
}
inline const StoredTensor* SafetensorsFile::find(std::string_view) const {
  detail::absent(detail::no_checkpoints);
}
inline bool SafetensorsFile::readable(const StoredTensor&) {
  detail::absent(detail::no_checkpoints);
}
inline void SafetensorsFile::read(const StoredTensor&, std::int64_t, std::int64_t, DType,
                                  void*) const {
  detail::absent(detail::no_checkpoints);
}
inline SafetensorsWriter::SafetensorsWriter(std::string, std::vector<StoredTensor>,
                                            const std::map<std::string, std::string>&) {
  detail::absent(detail::no_checkpoints);
}
inline void SafetensorsWriter::write(const void*, std::size_t) {
  detail::absent(detail::no_checkpoints);
}
inline void SafetensorsWriter::commit() { detail::absent(detail::no_checkpoints); }

inline JsonLog::JsonLog(const std::string&, bool) { detail::absent(detail::no_files); }
inline void JsonLog::restart() { detail::absent(detail::no_files); }
inline void JsonLog::resume_at(std::int64_t, bool) { detail::absent(detail::no_files); }
inline void JsonLog::write(std::span<const JsonField>) { detail::absent(detail::no_files); }
inline std::string JsonField::number(double) { detail::absent(detail::no_files); }
inline std::string JsonField::quoted(std::string_view) { detail::absent(detail::no_files); }

inline std::unique_ptr<Dataset> mnist(const std::string&, const DataOptions&) {
  detail::absent(detail::no_images);
}
inline std::unique_ptr<Dataset> cifar10(const std::string&, const DataOptions&) {
  detail::absent(detail::no_images);
}
inline std::unique_ptr<Dataset> cifar100(const std::string&, const DataOptions&) {
  detail::absent(detail::no_images);
}
inline std::unique_ptr<Dataset> images(const std::string&, const DataOptions&) {
  detail::absent(detail::no_images);
}
inline std::unique_ptr<Dataset> open_data(std::string_view source, const DataOptions& options) {
  if (source == "synthetic") return synthetic(options);
  detail::absent(detail::no_images);
}

inline Plan parse_plan(const std::string&) { detail::absent(detail::no_plans); }
inline std::string plan_json(const Plan&) { detail::absent(detail::no_plans); }
inline Plan read_plan(const std::string&) { detail::absent(detail::no_plans); }
inline void write_plan(const std::string&, const Plan&) { detail::absent(detail::no_plans); }

inline void write_prediction_json(const std::string&, const Prediction&) {
  detail::absent(detail::no_plans);
}
inline void write_validation_json(const std::string&, const Validation&) {
  detail::absent(detail::no_plans);
}
inline std::string scaling_svg(const Prediction&) { detail::absent(detail::no_reports); }
inline std::string convergence_svg(const Prediction&) { detail::absent(detail::no_reports); }

inline Cluster parse_cluster(const std::string&) { detail::absent(detail::no_clusters); }
inline std::string cluster_json(const Cluster&) { detail::absent(detail::no_clusters); }
inline Cluster read_cluster(const std::string&) { detail::absent(detail::no_clusters); }
inline void write_cluster(const std::string&, const Cluster&) {
  detail::absent(detail::no_clusters);
}
inline Cluster find_cluster(const std::string& name) {
  for (const auto ready : cluster_names())
    if (ready == name) return ready_cluster(name);
  detail::absent(detail::no_clusters);
}

inline std::string measured_json(const MeasuredTimes&) { detail::absent(detail::no_times); }
inline void add_measured_json(MeasuredTimes&, const std::string&) {
  detail::absent(detail::no_times);
}

inline void write_profile_json(const std::string&, const Profile&) {
  detail::absent(detail::no_reports);
}
inline Profile read_profile_json(const std::string&) { detail::absent(detail::no_reports); }
inline void write_profile_csv(const std::string&, const Profile&) {
  detail::absent(detail::no_reports);
}
inline void write_trace(const std::string&, const Profile&) { detail::absent(detail::no_reports); }
inline std::string roofline_svg(const Profile&, const Profile*) {
  detail::absent(detail::no_reports);
}
inline std::string report_html(const Profile&, const Profile*) {
  detail::absent(detail::no_reports);
}
inline std::vector<std::string> write_report(const std::string&, const Profile&, const Profile*) {
  detail::absent(detail::no_reports);
}
inline std::string trace_path(const std::string&, int, int) { detail::absent(detail::no_reports); }
inline TraceWriter::TraceWriter(const std::string&, int, int, const std::string&) {
  detail::absent(detail::no_reports);
}
inline TraceWriter::~TraceWriter() = default;
inline void TraceWriter::step(std::int64_t, double, std::span<const Span>,
                              std::span<const std::string>) {
  detail::absent(detail::no_reports);
}

}  // namespace lamina
