// Optimizers, schedules, data in memory, the trainer: what is compiled once.
#pragma once

#include <lamina/train/data/impl/loader.hpp>
#include <lamina/train/data/impl/options.hpp>
#include <lamina/train/data/impl/synthetic.hpp>
#include <lamina/train/data/impl/transform.hpp>
#include <lamina/train/impl/alike.hpp>
#include <lamina/train/impl/balance.hpp>
#include <lamina/train/impl/choose_plan.hpp>
#include <lamina/train/impl/elastic.hpp>
#include <lamina/train/impl/fit.hpp>
#include <lamina/train/impl/growth.hpp>
#include <lamina/train/impl/hand_over.hpp>
#include <lamina/train/impl/micro_batch.hpp>
#include <lamina/train/impl/optimizer.hpp>
#include <lamina/train/impl/plan.hpp>
#include <lamina/train/impl/resizes.hpp>
#include <lamina/train/impl/schedule.hpp>
#include <lamina/train/impl/slots.hpp>
#include <lamina/train/impl/targets.hpp>
#include <lamina/train/impl/trainer.hpp>
#include <lamina/train/impl/validate_plans.hpp>
#include <lamina/train/impl/values.hpp>
