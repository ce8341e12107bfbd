// Plans: what is compiled once.
#pragma once

#include <lamina/plan/impl/add_predicted.hpp>
#include <lamina/plan/impl/built_in.hpp>
#include <lamina/plan/impl/calibrate.hpp>
#include <lamina/plan/impl/cluster.hpp>
#include <lamina/plan/impl/collective_time.hpp>
#include <lamina/plan/impl/find_plan.hpp>
#include <lamina/plan/impl/layer_times.hpp>
#include <lamina/plan/impl/measured_times.hpp>
#include <lamina/plan/impl/plan.hpp>
#include <lamina/plan/impl/prediction.hpp>
#include <lamina/plan/impl/prediction_table.hpp>
#include <lamina/plan/impl/ready_clusters.hpp>
#include <lamina/plan/impl/search/brute.hpp>
#include <lamina/plan/impl/search/cheapest.hpp>
#include <lamina/plan/impl/search/exact.hpp>
#include <lamina/plan/impl/search/graph.hpp>
#include <lamina/plan/impl/search/improve.hpp>
#include <lamina/plan/impl/search/mcmc.hpp>
#include <lamina/plan/impl/search/searchers.hpp>
#include <lamina/plan/impl/search/swarm.hpp>
#include <lamina/plan/impl/step_costs.hpp>
#include <lamina/plan/impl/step_model.hpp>
#include <lamina/plan/impl/table.hpp>
#include <lamina/plan/impl/timeline.hpp>
#include <lamina/plan/impl/validation.hpp>
