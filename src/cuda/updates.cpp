#include "cuda/on_gpu.hpp"
#include "cuda/own_kernels.hpp"
#include "kernels/update.hpp"

#include <lamina/kernels/detail/in_turn.hpp>

#include <algorithm>
#include <cstdint>

namespace lamina::cuda {

namespace {

/// What runs, and the chunks into which it is cut, where kernels read it.
template <class Run>
class Table {
 public:
  Table(Memory& memory, const std::vector<Run>& runs) : run_count_(std::int64_t(runs.size())) {
    std::vector<Chunk> chunks;
    for (std::size_t r = 0; r < runs.size(); ++r)
      for (std::int64_t i = 0; i * chunk_elements < runs[r].count; ++i)
        chunks.push_back({std::int32_t(r), std::int32_t(i)});
    chunk_count_ = std::int64_t(chunks.size());
    runs_ = there(memory, runs), chunks_ = there(memory, chunks);
  }

  const Run* runs() const { return static_cast<const Run*>(runs_.view().data); }
  const Chunk* chunks() const { return static_cast<const Chunk*>(chunks_.view().data); }
  std::int64_t run_count() const { return run_count_; }
  std::int64_t chunk_count() const { return chunk_count_; }

 private:
  template <class T>
  static Tensor there(Memory& memory, const std::vector<T>& from) {
    static_assert(sizeof(T) % sizeof(double) == 0);
    if (from.empty()) return {};
    Tensor to(vector_of(std::int64_t(from.size() * sizeof(T) / sizeof(double))), memory);
    memory.copy(from.data(), to.view().data, to.bytes());
    return to;
  }

  std::int64_t run_count_ = 0, chunk_count_ = 0;
  Tensor runs_, chunks_;
};

UpdateRun run_of(const Memory& memory, const UpdatePart& p) {
  UpdateRun r;
  const auto state = [&](std::size_t i) {
    return i < p.states.size() ? memory.at(p.states[i]) : nullptr;
  };
  r.w = memory.at(p.w), r.dw = memory.at(p.dw), r.rounded = memory.at(p.rounded);
  r.first = state(0), r.second = state(1);
  r.count = std::int64_t(p.w.bytes() / size_of(p.w.dtype));
  bool aligned = r.count % 4 == 0;
  for (const void* at : {static_cast<const void*>(r.w), r.dw, static_cast<const void*>(r.first),
                         static_cast<const void*>(r.second), static_cast<const void*>(r.rounded)})
    aligned &= reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  r.packed = aligned;
  r.rate = p.rate, r.weight_decay = p.weight_decay;
  r.value_square = memory.at<const double>(p.value_square);
  r.grad_square = memory.at<const double>(p.grad_square);
  r.trust = p.trust;
  return r;
}

std::vector<UpdateRun> runs_of(const Memory& memory, std::span<const UpdatePart> parts) {
  std::vector<UpdateRun> runs;
  for (const UpdatePart& p : parts) runs.push_back(run_of(memory, p));
  return runs;
}

class GpuUpdate final : public OnGpu<UpdateKernel> {
 public:
  GpuUpdate(MemoryPointer memory, const UpdateRule& rule, std::span<const UpdatePart> parts)
      : OnGpu(std::move(memory)), table_(this->memory(), runs_of(this->memory(), parts)) {
    using Kind = UpdateRule::Kind;
    update_.kind = rule.kind == Kind::sgd    ? Update::Kind::sgd
                   : rule.kind == Kind::adam ? Update::Kind::adam
                                             : Update::Kind::adamw;
    update_.momentum = rule.momentum, update_.nesterov = rule.nesterov;
    update_.beta1 = rule.beta1, update_.beta2 = rule.beta2, update_.epsilon = rule.epsilon;
    for (const UpdatePart& p : parts) {
      const UpdateTypes types{p.w.dtype, p.dw.dtype, p.rounded ? p.rounded.dtype : DType::f32};
      check(&p == parts.data() ||
                (types.w == types_.w && types.dw == types_.dw && types.rounded == types_.rounded),
            "update: expected parts of one type, got ", p.w.form(), " and others");
      types_ = types;
    }
  }

  void run(Stream& stream, const UpdateStep& step) override {
    Update u = update_;
    u.rate = step.rate, u.weight_decay = step.weight_decay;
    u.grad_scale = step.grad_scale, u.step = double(step.step);
    u.values = memory().at<const UpdateValues>(step.values);
    u.found = memory().at<const double>(step.found), u.samples = step.samples;
    u.squares = memory().at<const double>(step.squares);
    u.square_count = step.squares ? int(step.squares.shape.size()) : 0;
    u.clip_norm = step.clip_norm;
    u.loss_scale = memory().at<const LossScale>(step.loss_scale);
    put(stream, Pass::update, "update", [&](cudaStream_t s) {
      return update(s, u, types_, table_.runs(), table_.chunks(), table_.chunk_count());
    });
  }

 private:
  Table<UpdateRun> table_;
  Update update_;
  UpdateTypes types_;
};

std::vector<SquaresRun> runs_of(const Memory& memory, std::span<const SquaresPart> parts) {
  std::vector<SquaresRun> runs;
  std::int64_t chunks = 0;
  for (const SquaresPart& p : parts) {
    check_elements(p.x, "squares");
    check_operand(p.sum, vector_of(1), "squares sum");
    const auto count = std::int64_t(p.x.bytes() / size_of(p.x.dtype));
    runs.push_back({memory.at(p.x), p.x.dtype, count, memory.at<double>(p.sum), chunks});
    chunks += (count + chunk_elements - 1) / chunk_elements;
  }
  return runs;
}

class GpuSquares final : public OnGpu<SquaresKernel> {
 public:
  GpuSquares(MemoryPointer memory, std::span<const SquaresPart> parts)
      : OnGpu(std::move(memory)),
        table_(this->memory(), runs_of(this->memory(), parts)),
        partials_(vector_of(std::max<std::int64_t>(table_.chunk_count(), 1)), this->memory()) {}

  void run(Stream& stream, Pass pass) override {
    put(stream, pass, "squares", [&](cudaStream_t s) {
      return square(s, table_.runs(), table_.run_count(), table_.chunks(), table_.chunk_count(),
                    static_cast<double*>(partials_.view().data));
    });
  }

 private:
  Table<SquaresRun> table_;
  Tensor partials_;
};

}  // namespace

std::unique_ptr<UpdateKernel> make_update(const MemoryPointer& memory, const UpdateRule& rule,
                                          std::span<const UpdatePart> parts) {
  lamina::detail::check_parts(rule, parts);
  return std::make_unique<GpuUpdate>(memory, rule, parts);
}

std::unique_ptr<SquaresKernel> make_squares(const MemoryPointer& memory,
                                            std::span<const SquaresPart> parts) {
  return std::make_unique<GpuSquares>(memory, parts);
}

}  // namespace lamina::cuda
