// What a back end does outside of layers: it updates parameters, sums up their squares and moves
// boxes. Each function puts that into a stream.
#pragma once

#include "cuda/memory.hpp"

#include <lamina/kernels/backend.hpp>

#include <span>

namespace lamina::cuda {

/// See Backend::update().
cudaError_t put_update(Queue& queue, const Memory& memory, const UpdateRule& rule,
                       const UpdateStep& step, const View& w, const View& dw,
                       std::span<const View> states);
/// See Backend::squared_norm().
cudaError_t put_squared_norm(Queue& queue, const Memory& memory, const View& x, const View& sum);
/// See Backend::move().
cudaError_t put_moves(Queue& queue, const Memory& memory, std::span<const BoxMove> moves);

}  // namespace lamina::cuda
