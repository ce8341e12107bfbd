// What the compiled library has, for a program that is built with LAMINA_HEADER_ONLY.
#pragma once

#include <lamina/absent.hpp>
#include <lamina/base/impl.hpp>
#include <lamina/comm/impl.hpp>
#include <lamina/cost/impl.hpp>
#include <lamina/kernels/impl/backends.hpp>
#include <lamina/kernels/impl/checks.hpp>
#include <lamina/kernels/impl/move_boxes.hpp>
#include <lamina/kernels/impl/plain_weights.hpp>
#include <lamina/kernels/impl/update.hpp>
#include <lamina/kernels/reference/impl/backend.hpp>
#include <lamina/kernels/reference/impl/planning.hpp>
#include <lamina/kernels/reference/impl/reference.hpp>
#include <lamina/layers/impl.hpp>
#include <lamina/network/impl.hpp>
#include <lamina/plan/impl.hpp>
#include <lamina/profile/impl.hpp>
#include <lamina/train/impl.hpp>
