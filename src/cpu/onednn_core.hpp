// What all oneDNN kernels are made of: the runtime, layouts, and primitives with their arguments.
#pragma once

#include "cpu/blocked.hpp"
#include "cpu/onednn_compat.hpp"
#include "cpu/onednn_isa.hpp"
#include "cpu/processors.hpp"

#include <lamina/kernels/choice.hpp>
#include <lamina/tensor/reserve.hpp>

#include <array>
#include <atomic>
#include <functional>
#include <initializer_list>

namespace lamina::detail {

using Type = dnnl::memory::data_type;
inline constexpr Type f32 = Type::f32;

inline Type type_of(DType t) { return t == DType::bf16 ? Type::bf16 : Type::f32; }

/// Engine, stream and scratchpad of a back end. Kernels share the scratchpad, so the kernels of one
/// back end run one at a time.
struct Runtime {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::primitive_attr attr;  // scratchpads are ours
  Choice choice;

  explicit Runtime(Choice c = {}) : choice(std::move(c)) {
    if (!choice.verdicts) choice.verdicts = std::make_shared<Verdicts>();
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }

  /// What primitives are made with that end in an epilogue. oneDNN's ReLU would make a NaN 0, and a
  /// training or a network that has gone wrong look right; with any slope NaN stays.
  dnnl::primitive_attr with(const Epilogue&) const;

  /// A kernel takes so many bytes of the scratchpad.
  void reserve(std::size_t bytes) { most_ = std::max(most_, bytes); }
  /// As large as the most that any kernel takes; there from the first call on, so that kernels
  /// which never run take no memory.
  const View& scratch() {
    if (most_ > scratch_.bytes()) scratch_ = Tensor(), scratch_ = bytes_of(most_);
    return scratch_.view();
  }
  static Tensor bytes_of(std::size_t bytes) {
    return Tensor(Form{{std::int64_t((bytes + 3) / 4), 1, 1, 1}, DType::f32, {}});
  }

  /// Takes the scratchpad, and gives back what the heap has kept of operands that kernels were
  /// tried on, by whatever runtime: hundreds of MB with a large model, which lie between what is
  /// still there.
  void make_room() {
    if (tried.exchange(false)) trim_heap();
    scratch();
  }
  /// Whether kernels were tried since.
  static inline std::atomic<bool> tried = false;

  /// While it lives kernels are tried: a scratchpad that they ask for goes with it, unless there
  /// was one before. Placing takes no memory.
  class Trial {
   public:
    explicit Trial(Runtime& runtime) : runtime_(runtime), first_(!runtime.scratch_.view()) {}
    ~Trial() {
      if (first_) runtime_.scratch_ = Tensor();
    }
    Trial(const Trial&) = delete;

   private:
    Runtime& runtime_;
    bool first_;
  };

 private:
  std::size_t most_ = 0;
  Tensor scratch_;
};
using RuntimePtr = std::shared_ptr<Runtime>;

/// A memory descriptor as a layout: that of f32, whatever the elements are.
class DescLayout final : public LayoutKind {
 public:
  explicit DescLayout(const Desc& desc)
      : desc_(retyped(desc, f32)), fingerprint_(fingerprint_of(desc_)) {}

  const Desc& desc() const { return desc_; }
  std::string name() const override;  ///< as oneDNN writes it: "aBcd16b"
  std::int64_t elements() const override { return std::int64_t(desc_.get_size() / sizeof(float)); }
  bool equals(const LayoutKind& other) const override {
    const auto* that = dynamic_cast<const DescLayout*>(&other);
    return that && that->desc_ == desc_;
  }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::optional<AxisOrder> order(const Shape&) const override;

 private:
  /// 0 for what oneDNN alone can read.
  static std::uint64_t fingerprint_of(const Desc&);

  Desc desc_;
  std::uint64_t fingerprint_;
};

/// Whether the elements lie contiguous in the order of the dimensions, however that is expressed:
/// 16 channels of one pixel are plain in nChw16c too.
bool is_plain(const Desc&);
Layout to_layout(const Desc&);
inline Form to_form(Shape shape, const Desc& desc) {
  return {shape, data_type(desc) == Type::bf16 ? DType::bf16 : DType::f32, to_layout(desc)};
}

inline Dims dims(Shape s) { return {s.n, s.c, s.h, s.w}; }
Desc plain(const Dims&, Type = f32);  ///< contiguous
Desc any(const Dims&, Type = f32);    ///< layout to be chosen by oneDNN
/// Of the dimensions of its layout; a plain form gets `plain_dims`, or else its shape's.
Desc to_desc(const Form&, const Dims& plain_dims = {});

/// The dimensions that the layout itself speaks of (five for grouped weights); empty if plain.
Dims layout_dims(const Form&);

/// Channels that lie together: 1 in nchw, b in nChw<b>c, 0 if the form is neither.
int channel_block(const Form&);

/// Throws Error unless x is f32 or bf16, has elements, and is laid out plainly or by oneDNN.
void check_input(const Form& x, const char* who);

/// Up to where the next operand may begin.
inline std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A primitive and its arguments, set up once. A run binds the buffers that differ from the last
/// run's and executes.
class Op {
 public:
  struct Arg {
    int id;
    Desc desc;
  };

  Op() = default;
  Op(RuntimePtr, const dnnl::primitive_desc_base&, const dnnl::primitive&,
     std::initializer_list<Arg>);

  explicit operator bool() const { return count_ > 0; }
  std::size_t scratch() const { return scratch_; }  ///< bytes of the shared scratchpad in use
  /// `buffers` in the order of the arguments; arguments with an empty descriptor take none. Throws
  /// Error where OpenMP gives fewer threads than where it was made.
  void operator()(std::initializer_list<void*> buffers);

 private:
  static constexpr std::size_t most = 6;

  void bind(std::size_t i, void* data);

  RuntimePtr runtime_;
  dnnl::primitive primitive_;
  std::array<dnnl::memory, most> memories_;
  std::array<dnnl_exec_arg_t, most> args_{};
  std::array<void*, most> bound_{};
  std::array<bool, most> taken_{};
  std::size_t given_ = 0, count_ = 0, scratch_ = 0;
  int threads_ = 1;  ///< that its work is shared out among
};

/// Reorders between two descriptors.
Op reorder_op(const RuntimePtr&, const Desc& from, const Desc& to);

/// bf16, by kernels for f32 between copies; with an epilogue behind, on bf16. For `forward_only`
/// weights and bias stay f32.
std::unique_ptr<WeightedKernel> make_widened(RuntimePtr, std::unique_ptr<WeightedKernel>,
                                             const Epilogue&, bool forward_only);
std::unique_ptr<UnaryKernel> make_widened(RuntimePtr, std::unique_ptr<UnaryKernel>);
/// Why to take the kernel that `in_f32` makes, f32 between copies, for `native`, which is for bf16:
/// its passes take less time; empty where they do not, or where it is not by Winograd. Timed on
/// random data, unless the verdicts know how long each takes for `what`.
std::string why_f32(
    Runtime&, const std::string& what, WeightedKernel& native, bool forward_only,
    const std::function<std::unique_ptr<WeightedKernel>(const RuntimePtr&)>& in_f32);

/// The library's version, instruction set and threads: "oneDNN 2.6.3, AVX2, OpenMP, 1 thread".
std::string library();

/// "jit_wino", or "brgconv|jit|jit" where the passes differ.
std::string join(const std::string& forward, const std::string& input_grad,
                 const std::string& weight_grad);

/// Of all that an implementation can depend on, in words.
std::string geometry_of(const ConvGeometry&, const Form& x);

std::unique_ptr<WeightedKernel> make_conv(RuntimePtr, const ConvGeometry&, const Form& x,
                                          const Epilogue&, bool forward_only);
using MakeConv = std::function<std::unique_ptr<WeightedKernel>(const RuntimePtr&,
                                                               const ConvGeometry&, const Form& x)>;
/// What make() makes of an image that is padded beforehand, where that alone has a kernel that
/// oneDNN compiles for it; else nothing.
std::unique_ptr<WeightedKernel> padded_conv(const RuntimePtr&, const ConvGeometry&, const Form& x,
                                            const MakeConv& make);
/// What make() makes for 1x1 windows of the pixels that a stride takes, which are copied
/// beforehand, where that is for tiles (AMX); else nothing.
std::unique_ptr<WeightedKernel> thinned_conv(const RuntimePtr&, const ConvGeometry&, const Form& x,
                                             const MakeConv& make);
std::unique_ptr<WeightedKernel> make_linear(RuntimePtr, std::int64_t features, bool bias,
                                            const Form& x, const Epilogue&);
std::unique_ptr<UnaryKernel> make_activation(RuntimePtr, const Activation&, const Form& x);
std::unique_ptr<UnaryKernel> make_pool(RuntimePtr, const PoolGeometry&, const Form& x);
/// By a loop of our own, which there is for maxima of bf16 in n-h-w-c, and of f32 in nChw8c and
/// nChw16c, which it wants instead of plain images of some channels; else nothing.
std::unique_ptr<UnaryKernel> make_max_pool(const PoolGeometry&, const Form& x);
std::unique_ptr<UnaryKernel> make_lrn(RuntimePtr, const LrnGeometry&, const Form& x);
std::unique_ptr<UnaryKernel> make_softmax(RuntimePtr, const Form& x);
std::unique_ptr<UnaryKernel> make_reorder(RuntimePtr, const Form& x, const Form& y);
std::unique_ptr<UnaryKernel> make_reorder_rows(RuntimePtr, const Form& x, std::int64_t first,
                                               const Form& y, std::int64_t to, std::int64_t count);
std::unique_ptr<NaryKernel> make_sum(std::span<const Form> xs);
std::unique_ptr<NaryKernel> make_concat(std::span<const Form> xs);
std::unique_ptr<DropoutKernel> make_dropout(double rate, const Form& x, const Shape& whole,
                                            const Box& box);

}  // namespace lamina::detail
