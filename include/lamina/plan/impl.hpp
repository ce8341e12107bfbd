// Plans: what is compiled once.
#pragma once

#include <lamina/plan/impl/built_in.hpp>
#include <lamina/plan/impl/cluster.hpp>
#include <lamina/plan/impl/collective_time.hpp>
#include <lamina/plan/impl/plan.hpp>
#include <lamina/plan/impl/ready_clusters.hpp>
#include <lamina/plan/impl/table.hpp>
