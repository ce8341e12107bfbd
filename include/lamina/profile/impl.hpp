// The profiler, the making of profiles, their table: what is compiled once.
#pragma once

#include <lamina/profile/impl/best.hpp>
#include <lamina/profile/impl/columns.hpp>
#include <lamina/profile/impl/late.hpp>
#include <lamina/profile/impl/lines.hpp>
#include <lamina/profile/impl/machine.hpp>
#include <lamina/profile/impl/machine_table.hpp>
#include <lamina/profile/impl/make_profile.hpp>
#include <lamina/profile/impl/measure.hpp>
#include <lamina/profile/impl/profiler.hpp>
#include <lamina/profile/impl/roofline.hpp>
#include <lamina/profile/impl/table.hpp>
#include <lamina/profile/impl/usage.hpp>
