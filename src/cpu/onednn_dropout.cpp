// Dropout: on plain operands, by a loop of our own.
#include "cpu/onednn_core.hpp"

namespace lamina::detail {
namespace {

class Dropout final : public DropoutKernel {
 public:
  Dropout(double rate, const Form& x, const Shape& whole, const Box& box)
      : rate_(rate), whole_(whole), box_(box) {
    check_input(x, "dropout");
    check(rate >= 0 && rate < 1, "dropout: expected a rate from 0 to less than 1, got ", rate);
    // The mask goes by the index in n-c-h-w order.
    inputs = {{x.shape, x.dtype, {}}};
    output = inputs[0];
    algorithm = "lamina:philox";
  }

  void apply(Stream& stream, Pass pass, const View& now, std::int32_t layer, const View& x,
             const View& y) override {
    check_operand(x, inputs[0], "dropout x"), check_operand(y, output, "dropout y");
    check_operand(now, Passed<StepValues>::form(), "dropout now");
    stream.run(pass, "dropout", [&] {
      const DropoutMask mask(rate_, Passed<StepValues>::in(now), layer, whole_.size());
      visit(x.dtype, [&]<Stored T>(T) {
        dropout(mask, float(1 / (1 - rate_)), whole_, box_, x.as<const T>(), y.as<T>());
      });
    });
  }

 private:
  double rate_;
  Shape whole_;
  Box box_;
};

}  // namespace

std::unique_ptr<DropoutKernel> make_dropout(double rate, const Form& x, const Shape& whole,
                                            const Box& box) {
  return std::make_unique<Dropout>(rate, x, whole, box);
}

}  // namespace lamina::detail
