// The kernels of a GPU that are our own (kernels/), as a back end makes them.
#pragma once

#include "cuda/on_gpu.hpp"

#include <lamina/kernels/ceilings.hpp>

namespace lamina::cuda {

using MemoryPointer = std::shared_ptr<Memory>;

std::unique_ptr<NormKernel> make_norm(const MemoryPointer&, const Form& x, const Epilogue&);
std::unique_ptr<DropoutKernel> make_dropout(const MemoryPointer&, double rate, const Form& x,
                                            const Shape& whole, const Box&);
std::unique_ptr<LossKernel> make_loss(const MemoryPointer&, const LossGeometry&, const Form& x);
std::unique_ptr<UnaryKernel> make_reorder(const MemoryPointer&, const Form& x, const Form& y);
std::unique_ptr<UnaryKernel> make_activation(const MemoryPointer&, const Activation&,
                                             const Form& x);
std::unique_ptr<UnaryKernel> make_pool(const MemoryPointer&, const PoolGeometry&, const Form& x);
std::unique_ptr<UnaryKernel> make_lrn(const MemoryPointer&, const LrnGeometry&, const Form& x);
/// Over the channels.
std::unique_ptr<UnaryKernel> make_softmax(const MemoryPointer&, const Form& x);
std::unique_ptr<NaryKernel> make_sum(const MemoryPointer&, std::span<const Form> xs);
std::unique_ptr<NaryKernel> make_concat(const MemoryPointer&, std::span<const Form> xs);
std::unique_ptr<UpdateKernel> make_update(const MemoryPointer&, const UpdateRule&,
                                          std::span<const UpdatePart> parts);
std::unique_ptr<SquaresKernel> make_squares(const MemoryPointer&,
                                            std::span<const SquaresPart> parts);

/// With `tf32`, f32 is multiplied so, too.
std::unique_ptr<CeilingLoops> make_ceilings(const MemoryPointer&, bool tf32);

/// Puts into the stream: y has the elements of x, which is of one shape, in its own layout and
/// type.
cudaError_t rearrange(cudaStream_t stream, const Form& x_form, const void* x, const Form& y_form,
                      void* y);

}  // namespace lamina::cuda
