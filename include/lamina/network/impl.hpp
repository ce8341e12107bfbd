// Networks and how they are placed; the models: what is compiled once.
#pragma once

#include <lamina/network/impl/activations.hpp>
#include <lamina/network/impl/agree.hpp>
#include <lamina/network/impl/compare_ranks.hpp>
#include <lamina/network/impl/fusion.hpp>
#include <lamina/network/impl/memory.hpp>
#include <lamina/network/impl/models/alexnet.hpp>
#include <lamina/network/impl/models/lenet.hpp>
#include <lamina/network/impl/models/models.hpp>
#include <lamina/network/impl/models/resnet.hpp>
#include <lamina/network/impl/models/vgg.hpp>
#include <lamina/network/impl/network.hpp>
#include <lamina/network/impl/parameters.hpp>
#include <lamina/network/impl/placed.hpp>
#include <lamina/network/impl/placer.hpp>
#include <lamina/network/impl/predict.hpp>
#include <lamina/network/impl/source.hpp>
#include <lamina/network/impl/step.hpp>
#include <lamina/network/impl/why_illegal.hpp>
#include <lamina/network/impl/workers.hpp>
